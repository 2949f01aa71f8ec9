import { X509Certificate } from 'node:crypto';
import * as fs from 'node:fs';
import * as https from 'node:https';
import * as net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { makeCertificate, silentLogger, systemClock } from '../../src/base/index.ts';
import { SELF_SIGNED, ServedCertificate, serveStatus } from '../../src/observability/index.ts';

const YEAR_MS = 365 * 86_400_000;
const PATIENT = { timeout: 20_000 };

/** A request of an HTTPS client. `ca` makes it check the certificate, as Prometheus does. */
function get(address: string, ca?: string): Promise<{ status: number; fingerprint: string }> {
  return new Promise((resolve, reject) => {
    const options = {
      host: '127.0.0.1',
      port: portOf(address),
      path: '/healthz',
      agent: false,
      ...(ca === undefined ? { rejectUnauthorized: false } : { ca }),
    };
    const request = https.get(options, (response) => {
      const { socket, statusCode: status = 0 } = response;
      response.resume();
      const peer = 'getPeerCertificate' in socket && (socket as TLSSocket).getPeerCertificate();
      resolve({ status, fingerprint: peer ? peer.fingerprint256 : '' });
    });
    request.on('error', reject);
  });
}

const portOf = (address: string): number => Number(/\d+$/.exec(address)?.[0]);

const fingerprintOf = ({ certificate }: { certificate: string }): string =>
  new X509Certificate(certificate).fingerprint256;

/** RSA with 512 bits, valid until 2126 (openssl req -x509 -newkey rsa:512 -nodes -days 36500). */
const WEAK = {
  'tls.crt': `-----BEGIN CERTIFICATE-----
MIIBdzCCASGgAwIBAgIUL1EG9zxYC1bhGirlouWTrOUOzkYwDQYJKoZIhvcNAQEL
BQAwDzENMAsGA1UEAwwEd2VhazAgFw0yNjExMjkxMDMzNDBaGA8yMTI2MTEwNTEw
MzM0MFowDzENMAsGA1UEAwwEd2VhazBcMA0GCSqGSIb3DQEBAQUAA0sAMEgCQQDZ
knJSbVplqr5Vsl29CMkdpBMubwEPYpoQ/nZPe59kOabtY2mRq07K+VoHMo+EmBrQ
mb42ZmDpFn4O8RRquOyfAgMBAAGjUzBRMB0GA1UdDgQWBBSl1mLG+aAO2yEAiT6e
15NyKUWUxTAfBgNVHSMEGDAWgBSl1mLG+aAO2yEAiT6e15NyKUWUxTAPBgNVHRMB
Af8EBTADAQH/MA0GCSqGSIb3DQEBCwUAA0EAy5FvzYOX1M02QExEE1CvhnYJ5rYe
YiW6hRBdp+Vn6iWNPLrBtCA3SZ061BUWUAy6fO1Og6RVM4KM+5J3wjkMmQ==
-----END CERTIFICATE-----
`,
  'tls.key': `-----BEGIN PRIVATE KEY-----
MIIBVQIBADANBgkqhkiG9w0BAQEFAASCAT8wggE7AgEAAkEA2ZJyUm1aZaq+VbJd
vQjJHaQTLm8BD2KaEP52T3ufZDmm7WNpkatOyvlaBzKPhJga0Jm+NmZg6RZ+DvEU
arjsnwIDAQABAkEAsDoRRThzvuN0tX76tDGYjNyn+LVKm4aXGeqyM6EDMq6McPrU
apTJITsPIKfUVUlulX0H1gCesq6R4g7+KWXFsQIhAP3yQYwncZ0QpRt2FjcX4Lrb
a34XnZFOQwiiD6ivoYWZAiEA21Tik1ZXNc4oqlNAP/9ZhaqTiyaSHm8kKuhhFGuA
9vcCIGsFBDCvksbRc/NtwZD4RCIbRGLASwwogkGKIrVBRv3JAiB2NUyb7ee4tvCR
w6aYF04vTRyR3WrY/jt26KERuVLbRwIhANzfUB6DNsN94FZykC4aGnmTKSsHfjGb
qhqIqU037s7R
-----END PRIVATE KEY-----
`,
};

describe('the certificate of --tls-certificate', () => {
  const SOURCES = { metrics: () => Promise.resolve('x 1\n'), notReady: () => undefined };
  let directory: string;
  let errors: string[];
  let version = 0;
  beforeEach(() => {
    directory = fs.mkdtempSync(join(tmpdir(), 'certificate-'));
    errors = [];
  });
  afterEach(() => {
    fs.rmSync(directory, { recursive: true });
  });
  const logger = {
    ...silentLogger,
    error: (_fields: object, text?: string) => void errors.push(text ?? ''),
  };
  const open = (source = directory): Promise<ServedCertificate> =>
    ServedCertificate.open(source, { logger, clock: systemClock, everyMs: 20 });

  /** As the kubelet updates a mounted Secret: a new directory, and a link that changes. */
  function mount(files: Readonly<Record<string, string>>): void {
    const name = `..${++version}`;
    fs.mkdirSync(join(directory, name));
    for (const [file, text] of Object.entries(files)) {
      fs.writeFileSync(join(directory, name, file), text);
      if (!fs.existsSync(join(directory, file))) {
        fs.rmSync(join(directory, file), { force: true });
        fs.symlinkSync(join('..data', file), join(directory, file));
      }
    }
    fs.symlinkSync(name, join(directory, '..new'));
    fs.renameSync(join(directory, '..new'), join(directory, '..data'));
  }
  const mountPair = ({ certificate, key }: ReturnType<typeof makeCertificate>): void => {
    mount({ 'tls.crt': certificate, 'tls.key': key });
  };

  const own = makeCertificate(Date.now());
  const other = makeCertificate(Date.now());
  it.each<[string, Readonly<Record<string, string>>, RegExp]>([
    ['a Secret that is not mounted', {}, /ENOENT.*tls\.crt/],
    ['a Secret without a key', { 'tls.crt': own.certificate }, /ENOENT.*tls\.key/],
    ['a bad certificate', { 'tls.crt': 'x', 'tls.key': own.key }, /tls\.crt is not a certificate/],
    ['a key that TLS finds too short', WEAK, /TLS refuses it \(ERR_SSL_EE_KEY_TOO_SMALL\)/],
    ['a bad key', { 'tls.crt': own.certificate, 'tls.key': 'x' }, /tls\.key is not an unencrypted/],
    [
      "another certificate's key",
      { 'tls.crt': own.certificate, 'tls.key': other.key },
      /tls\.key is not the key of tls\.crt/,
    ],
  ])('%s is refused at start, by name', async (_, files, reason) => {
    mount(files);
    const error: unknown = await open().catch((caught: unknown) => caught);
    expect(error).toMatchObject({ code: 'CERTIFICATE_UNUSABLE' });
    const { message } = error as Error;
    expect(message).toContain(`cannot use the certificate in ${directory}`);
    expect(message).toContain('Check the Secret');
    expect(message).toMatch(reason);
    expect(message).not.toContain('PRIVATE KEY');
  });

  it('serves metrics and probes over TLS, and nothing over plain HTTP', async () => {
    mountPair(own);
    using certificate = await open();
    await using server = await serveStatus('0.0.0.0:0', SOURCES, certificate);
    expect(await get(server.address, own.certificate)).toEqual({
      status: 200,
      fingerprint: fingerprintOf(own),
    });
    const port = portOf(server.address);
    await expect(fetch(`http://127.0.0.1:${port}/metrics`)).rejects.toThrow();
    await expect(get(server.address, other.certificate)).rejects.toThrow();
  });

  it('on an address of this machine only, plain HTTP stays', async () => {
    mountPair(own);
    using certificate = await open();
    for (const host of ['127.0.0.1', 'localhost']) {
      await using server = await serveStatus(`${host}:0`, SOURCES, certificate);
      expect((await fetch(`http://${server.address}/healthz`)).status).toBe(200);
    }
  });

  it('is replaced when the Secret changes, without a restart', async () => {
    mountPair(own);
    using certificate = await open();
    await using server = await serveStatus('0.0.0.0:0', SOURCES, certificate);
    expect((await get(server.address)).fingerprint).toBe(fingerprintOf(own));
    mountPair(other);
    await expect
      .poll(async () => (await get(server.address)).fingerprint, PATIENT)
      .toBe(fingerprintOf(other));
    expect(errors).toEqual([]);
  });

  it('stays if the Secret becomes unusable, and the log says so once', async () => {
    mountPair(own);
    using certificate = await open();
    await using server = await serveStatus('0.0.0.0:0', SOURCES, certificate);
    mount({ 'tls.crt': 'x', 'tls.key': own.key });
    await expect
      .poll(() => errors, PATIENT)
      .toEqual([
        expect.stringMatching(/tls\.crt is not a certificate.*The last good certificate stays/),
      ]);
    expect((await get(server.address)).fingerprint).toBe(fingerprintOf(own));
    fs.rmSync(join(directory, '..data'));
    await expect.poll(() => errors.at(-1), PATIENT).toMatch(/ENOENT/);
    const count = errors.length;
    mountPair(other);
    await expect
      .poll(async () => (await get(server.address)).fingerprint, PATIENT)
      .toBe(fingerprintOf(other));
    expect(errors.length).toBe(count);
  });

  it('stays with all servers if one of them refuses the new one, which is tried again', async () => {
    mountPair(own);
    using certificate = await open();
    await using server = await serveStatus('0.0.0.0:0', SOURCES, certificate);
    let refusals = 0;
    let isRefused = true;
    certificate.onChange(({ cert }) => {
      if (cert !== other.certificate || !isRefused) return;
      refusals++;
      throw Object.assign(new Error(other.key), { code: 'ERR_SSL_EE_KEY_TOO_SMALL' });
    });
    mountPair(other);
    await expect.poll(() => errors.length, PATIENT).toBe(1);
    expect(errors[0]).toMatch(
      /TLS refuses it \(ERR_SSL_EE_KEY_TOO_SMALL\).*last good certificate stays/,
    );
    expect(errors[0]).not.toContain('PRIVATE KEY');
    await expect.poll(() => refusals, PATIENT).toBeGreaterThan(1);
    expect(certificate.pair.cert).toBe(own.certificate);
    expect((await get(server.address)).fingerprint).toBe(fingerprintOf(own));
    isRefused = false;
    await expect
      .poll(async () => (await get(server.address)).fingerprint, PATIENT)
      .toBe(fingerprintOf(other));
    expect(errors).toHaveLength(1);
  });

  it('that has expired is served, refused by clients, and named in the log', async () => {
    const expired = makeCertificate(Date.now() - 2 * YEAR_MS);
    mountPair(expired);
    using certificate = await open();
    await using server = await serveStatus('0.0.0.0:0', SOURCES, certificate);
    expect(errors).toEqual([
      expect.stringMatching(/expired at 20\d\d-.*so clients refuse it\. Renew the Secret\./),
    ]);
    // The kubelet does not check certificates, so probes go on.
    expect((await get(server.address)).status).toBe(200);
    await expect(get(server.address, expired.certificate)).rejects.toThrow(/expired/);
    mountPair(own);
    await expect
      .poll(() => get(server.address, own.certificate).catch(String), PATIENT)
      .toMatchObject({ status: 200 });
  });

  it('that is not valid yet is named in the log', async () => {
    mountPair(makeCertificate(Date.now() + YEAR_MS));
    using certificate = await open();
    expect(errors).toEqual([expect.stringContaining('is not valid before')]);
    expect(certificate.pair.key).toContain('PRIVATE KEY');
  });

  it('is a new one for each process if it is self-signed', async () => {
    using one = await open(SELF_SIGNED);
    using two = await open(SELF_SIGNED);
    expect(one.pair.key).not.toBe(two.pair.key);
    await using server = await serveStatus('0.0.0.0:0', SOURCES, one);
    expect((await get(server.address, one.pair.cert)).status).toBe(200);
  });

  it('connections that never finish the handshake keep nobody out', async () => {
    using certificate = await open(SELF_SIGNED);
    const server = await serveStatus('0.0.0.0:0', SOURCES, certificate);
    const sockets = new Set<net.Socket>();
    for (let at = 0; at < 300; at++) {
      const socket = net.connect({
        port: portOf(server.address),
        host: '127.0.0.1',
        localAddress: '127.0.0.9',
      });
      sockets.add(socket);
      socket.on('error', () => undefined);
      socket.on('close', () => sockets.delete(socket));
      socket.resume();
    }
    await expect.poll(() => sockets.size, PATIENT).toBeLessThanOrEqual(100);
    expect((await get(server.address)).status).toBe(200);
    // Ends those in a handshake too.
    await server[Symbol.asyncDispose]();
    await expect.poll(() => sockets.size, PATIENT).toBe(0);
  });
});
