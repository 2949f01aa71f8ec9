import { spawn, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { HOUR_NS } from '../../src/base/index.ts';
import { blobId, type BlobStorage, openStorage, withRetries } from '../../src/blob/index.ts';
import { tempDirectory } from '../support/kopia.ts';

/**
 * What no local server offers (KMS, regions, classes) is tested on the request that would be sent,
 * and on the answers that Amazon's service documents.
 */
interface Recorded {
  readonly method: string;
  readonly url: string;
  readonly host: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: Buffer;
}
interface Answer {
  status?: number;
  headers?: Record<string, string>;
  body?: string;
}

const ID = blobId('p0123456789abcdef0123456789abcdef-s0');
const environment = {
  AWS_ACCESS_KEY_ID: 'AKIDEXAMPLE',
  AWS_SECRET_ACCESS_KEY: 'secret',
  AWS_EC2_METADATA_DISABLED: 'true',
};
const work = tempDirectory('s3-requests');
const servers: Server[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

/** For 127.0.0.1, of its own authority. */
const TLS_CERTIFICATE = new URL('../golden/tls/cert.pem', import.meta.url).pathname;
const TLS_KEY = new URL('../golden/tls/key.pem', import.meta.url).pathname;

async function serve(
  answers: (request: Recorded, index: number) => Answer,
  tls = false,
): Promise<{ port: number; requests: Recorded[] }> {
  const requests: Recorded[] = [];
  const listener = (incoming: IncomingMessage, outgoing: ServerResponse): void => {
    void Array.fromAsync(incoming as AsyncIterable<Buffer>).then((pieces) => {
      const { method = '', url = '', headers } = incoming;
      const request = {
        method,
        url,
        headers,
        host: headers.host ?? '',
        body: Buffer.concat(pieces),
      };
      requests.push(request);
      const answer = answers(request, requests.length - 1);
      const { status = method === 'DELETE' ? 204 : 200, headers: more = {}, body = '' } = answer;
      // What every service sends with an object.
      const always = { etag: '"0"', 'last-modified': 'Fri, 02 Jan 2026 03:04:05 GMT' };
      outgoing.writeHead(status, status < 300 ? { ...always, ...more } : more);
      outgoing.end(body);
    });
  };
  const server = tls
    ? createTlsServer(
        { key: fs.readFileSync(TLS_KEY), cert: fs.readFileSync(TLS_CERTIFICATE) },
        listener,
      )
    : createServer(listener);
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { port: (server.address() as AddressInfo).port, requests };
}

const WEB_IDENTITY_ANSWER = `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIAEXCHANGED</AccessKeyId>
<SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/backup/x</Arn><AssumedRoleId>A:x</AssumedRoleId></AssumedRoleUser>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`;

const errorBody = (code: string, more = ''): string =>
  `<?xml version="1.0"?><Error><Code>${code}</Code><Message>${code} said</Message>${more}</Error>`;

function open(
  port: number,
  parameters: Record<string, string> = {},
  tls = false,
): Promise<BlobStorage> {
  const query = new URLSearchParams({
    endpoint: `${tls ? 'https' : 'http'}://127.0.0.1:${port}`,
    ...parameters,
  });
  return openStorage(`s3://bucket/prefix/?${query.toString()}`, { environment, stallMs: 2000 });
}

describe('requests to S3', () => {
  it('a put carries length, type and checksum, all of them signed', async () => {
    const { port, requests } = await serve(() => ({}));
    await using storage = await open(port);
    await storage.putBlob(ID, [Buffer.from('hello '), Buffer.from('world')]);
    const [{ method, url, headers, body } = expect.fail()] = requests;
    expect([method, url.split('?')[0]]).toEqual(['PUT', `/bucket/prefix/${ID}`]);
    expect(body.toString()).toBe('hello world');
    expect(headers).toMatchObject({
      'content-length': '11',
      'content-type': 'application/x-kopia',
      'x-amz-checksum-crc32': 'DUoRhQ==',
      'x-amz-content-sha256': 'UNSIGNED-PAYLOAD',
    });
    expect(headers.authorization).toMatch(/SignedHeaders=[^,]*x-amz-checksum-crc32/);
    expect(headers['transfer-encoding']).toBeUndefined();
  });

  it.each([
    ['sha256', 'x-amz-checksum-sha256', 'uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek='],
    ['md5', 'content-md5', 'XrY7u+Ae7tCTyyK7j1rNww=='],
    ['none', 'x-amz-checksum-crc32', undefined],
  ])('checksum=%s', async (checksum, header, value) => {
    const { port, requests } = await serve(() => ({}));
    await using storage = await open(port, { checksum });
    await storage.putBlob(ID, [Buffer.from('hello world')]);
    expect(requests[0]?.headers[header]).toBe(value);
  });

  it('a service that knows no CRC-32 gets MD5 from then on', async () => {
    const { port, requests } = await serve(({ headers }) =>
      'x-amz-checksum-crc32' in headers
        ? {
            status: 501,
            body: errorBody('NotImplemented').replace(
              'NotImplemented said',
              'A header you provided implies functionality that is not implemented',
            ),
          }
        : {},
    );
    await using storage = await open(port);
    for (let i = 0; i < 3; i++) await storage.putBlob(ID, [Buffer.of(i)]);
    const md5 = requests.map(({ headers }) => 'content-md5' in headers);
    expect(md5).toEqual([false, true, true, true]);
  });

  it('classes, encryption by the service, keys of KMS, object lock, put-if-absent', async () => {
    const { port, requests } = await serve(() => ({}));
    await using storage = await open(port, {
      storageClass: 'STANDARD_IA',
      sse: 'aws:kms',
      kmsKeyId: 'arn:aws:kms:key',
    });
    await storage.putBlob(ID, [Buffer.of(1)], {
      retention: { mode: 'GOVERNANCE', periodNs: 48n * HOUR_NS },
      doNotRecreate: true,
    });
    const headers = requests[0]?.headers ?? {};
    expect(headers).toMatchObject({
      'x-amz-storage-class': 'STANDARD_IA',
      'x-amz-server-side-encryption': 'aws:kms',
      'x-amz-server-side-encryption-aws-kms-key-id': 'arn:aws:kms:key',
      'x-amz-object-lock-mode': 'GOVERNANCE',
      'if-none-match': '*',
    });
    const until = Date.parse(String(headers['x-amz-object-lock-retain-until-date']));
    expect(until - Date.now()).toBeGreaterThan(47 * 3_600_000);
  });

  const lockedUntil = (date: string, mode = 'GOVERNANCE'): string =>
    `<Retention><Mode>${mode}</Mode><RetainUntilDate>${date}</RetainUntilDate></Retention>`;

  it.each([
    ['a lock that ends later is good as it is', lockedUntil('2126-01-01T00:00:00Z'), true],
    ['so is a stronger one', lockedUntil('2126-01-01T00:00:00Z', 'COMPLIANCE'), true],
    ['one that ends sooner is not', lockedUntil('2026-01-01T00:00:00Z'), false],
    ['nor is none', errorBody('NoSuchObjectLockConfiguration'), false],
  ])('where a lock cannot be extended, %s', async (_, body, isGood) => {
    const { port, requests } = await serve(({ method }) =>
      method === 'PUT'
        ? { status: 403, body: errorBody('AccessDenied') }
        : { status: body.startsWith('<Retention>') ? 200 : 404, body },
    );
    await using storage = await open(port);
    const retention = { mode: 'GOVERNANCE', periodNs: 48n * HOUR_NS } as const;
    const extended = storage.extendRetention(ID, retention);
    if (isGood) await extended;
    else await expect(extended).rejects.toMatchObject({ code: 'STORAGE_DENIED' });
    expect(requests.map(({ method, url }) => [method, new URL(url, 'http://s3').search])).toEqual([
      ['PUT', '?retention='],
      ['GET', '?retention='],
    ]);
  });

  it('a weaker lock is not good enough, however long it is', async () => {
    const { port } = await serve(({ method }) =>
      method === 'PUT'
        ? { status: 403, body: errorBody('AccessDenied') }
        : { body: lockedUntil('2126-01-01T00:00:00Z') },
    );
    await using storage = await open(port);
    const retention = { mode: 'COMPLIANCE', periodNs: 48n * HOUR_NS } as const;
    await expect(storage.extendRetention(ID, retention)).rejects.toMatchObject({
      code: 'STORAGE_DENIED',
    });
  });

  it.each([
    [
      200,
      '<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>',
      true,
    ],
    [404, errorBody('ObjectLockConfigurationNotFoundError'), false],
    [403, errorBody('AccessDenied'), undefined],
    [501, errorBody('NotImplemented'), undefined],
  ])('a bucket says whether it has object lock (%s)', async (status, body, isLockable) => {
    const { port, requests } = await serve(() => ({ status, body }));
    await using storage = await open(port);
    expect(await storage.isLockable?.()).toBe(isLockable);
    expect(requests[0]?.url).toContain('?object-lock');
  });

  it("locks end by the service's clock: what a wrong one of this machine locks, nobody could undo", async () => {
    // This machine's clock is a year ahead.
    const nowMs = Date.now() - 366 * 86_400_000;
    const date = new Date(nowMs).toUTCString();
    const { port, requests } = await serve((_, index) =>
      index === 0
        ? { status: 403, headers: { date }, body: errorBody('RequestTimeTooSkewed') }
        : { headers: { date } },
    );
    await using storage = withRetries(await open(port));
    const retention = { mode: 'COMPLIANCE', periodNs: 48n * HOUR_NS } as const;
    await storage.putBlob(ID, [Buffer.of(1)], { retention });
    await storage.extendRetention(ID, retention);
    const [, put, extend] = requests;
    const ends = [
      String(put?.headers['x-amz-object-lock-retain-until-date']),
      /<RetainUntilDate>(.*?)<\//.exec(String(extend?.body))?.[1] ?? '',
    ].map((text) => (Date.parse(text) - nowMs) / 3_600_000);
    expect(ends.map(Math.round)).toEqual([48, 48]);
  });

  const endOf = (request: { headers: object; body: unknown } | undefined): number => {
    const { 'x-amz-object-lock-retain-until-date': ofPut } = (request?.headers ?? {}) as {
      'x-amz-object-lock-retain-until-date'?: string;
    };
    return Date.parse(
      ofPut ?? /<RetainUntilDate>(.*?)<\//.exec(String(request?.body))?.[1] ?? 'none',
    );
  };

  it("a lock is not shorter than the one before because answers tell the service's time in whole seconds", async () => {
    const { port, requests } = await serve((_, index) => ({
      headers: { date: new Date(Date.now() - 1000 * (20 - index)).toUTCString() },
    }));
    await using storage = await open(port);
    const retention = { mode: 'GOVERNANCE', periodNs: 48n * HOUR_NS } as const;
    await storage.putBlob(ID, [Buffer.of(1)], { retention });
    for (let times = 0; times < 5; times++) await storage.extendRetention(ID, retention);
    const ends = requests.map(endOf);
    expect(ends).toHaveLength(6);
    expect(ends).toEqual(ends.toSorted((a, b) => a - b));
  });

  it('a lock that was made a moment ago is as long as what a refusal was asked for', async () => {
    let asked = '';
    // What follows the refusal tells that the service's clock is an hour ahead: the same lock,
    // asked for now, would end later.
    const headers = { date: new Date(Date.now() + 3_600_000).toUTCString() };
    const { port } = await serve(({ method, body }) => {
      if (method !== 'PUT') return { headers, body: lockedUntil(asked) };
      asked = /<RetainUntilDate>(.*?)<\//.exec(String(body))?.[1] ?? asked;
      return { status: 403, headers, body: errorBody('AccessDenied') };
    });
    await using storage = await open(port);
    const retention = { mode: 'GOVERNANCE', periodNs: 48n * HOUR_NS } as const;
    await storage.extendRetention(ID, retention);
    expect(asked).not.toBe('');
  });

  it("a customer's own key goes with puts, gets and heads", async () => {
    const key = join(work, 'sse-c');
    fs.writeFileSync(key, Buffer.alloc(32, 7));
    const { port, requests } = await serve(() => ({
      body: 'x',
      headers: { 'content-length': '1' },
    }));
    await using storage = await open(port, { sseCustomerKeyFile: key });
    await storage.putBlob(ID, [Buffer.of(1)]);
    await storage.getBlob(ID);
    await storage.getMetadata(ID);
    for (const { headers } of requests) {
      expect(headers['x-amz-server-side-encryption-customer-key']).toBe(
        Buffer.alloc(32, 7).toString('base64'),
      );
    }
    fs.writeFileSync(key, 'short');
    await expect(open(port, { sseCustomerKeyFile: key })).rejects.toThrow(/a key of 32 bytes/);
  });

  it('the bucket is in the path with an endpoint of its own, and in the host when asked to', async () => {
    const { port, requests } = await serve(() => ({}));
    await using paths = await open(port);
    await paths.deleteBlob(ID);
    expect(requests[0]?.url).toContain(`/bucket/prefix/${ID}`);
    await using hosts = await openStorage(
      `s3://bucket/prefix/?endpoint=http://localhost:${port}&pathStyle=false`,
      { environment },
    );
    // Names below localhost lead to this machine where the resolver follows RFC 6761; else nothing
    // answers.
    const done = await hosts.deleteBlob(ID).then(
      () => true,
      (error: unknown) => String(error),
    );
    if (done === true) expect(requests[1]?.host).toBe(`bucket.localhost:${port}`);
    else expect(done).toContain('bucket.localhost');
  });

  it('a bucket in another region is followed there', async () => {
    const { port, requests } = await serve(({ headers }) =>
      headers.authorization?.includes('/eu-west-3/')
        ? {}
        : {
            status: 400,
            body: errorBody('AuthorizationHeaderMalformed', '<Region>eu-west-3</Region>'),
          },
    );
    await using storage = await open(port, { region: 'us-east-1' });
    for (let i = 0; i < 2; i++) await storage.putBlob(ID, [Buffer.of(i)]);
    expect(requests).toHaveLength(3);
  });

  it('sessions have their token signed, and files are preferred to the environment', async () => {
    const { port, requests } = await serve(() => ({}));
    const file = join(work, 'credentials');
    fs.writeFileSync(
      file,
      '[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = s\naws_session_token = token\n[other]\naws_access_key_id = AKIDOTHER\naws_secret_access_key = s\n',
    );
    await using byDefault = await open(port, { credentialsFile: file });
    await byDefault.deleteBlob(ID);
    await using byProfile = await open(port, { credentialsFile: file, profile: 'other' });
    await byProfile.deleteBlob(ID);
    expect(requests[0]?.headers.authorization).toContain('AKIDFILE/');
    expect(requests[0]?.headers['x-amz-security-token']).toBe('token');
    expect(requests[1]?.headers.authorization).toContain('AKIDOTHER/');
    await expect(open(port, { credentialsFile: join(work, 'missing') })).rejects.toMatchObject({
      code: 'BAD_LOCATION',
    });
  });

  it('a web identity is exchanged for keys, which sign what follows', async () => {
    const { port, requests } = await serve(({ method, body }) =>
      method === 'POST' && body.includes('AssumeRoleWithWebIdentity')
        ? { body: WEB_IDENTITY_ANSWER, headers: { 'content-type': 'text/xml' } }
        : { body: '<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>' },
    );
    const tokenFile = join(work, 'token');
    fs.writeFileSync(tokenFile, 'the-token-of-the-service-account');
    const bin = new URL('../../bin/longshore', import.meta.url).pathname;
    const location = `s3://bucket/?endpoint=http://127.0.0.1:${port}`;
    // The library reads the environment of its process, so this is one of its own.
    const child = spawn(bin, ['store', 'check', location], {
      env: {
        PATH: process.env.PATH,
        HOME: work,
        AWS_REGION: 'us-east-1',
        AWS_ROLE_ARN: 'arn:aws:iam::1:role/backup',
        AWS_WEB_IDENTITY_TOKEN_FILE: tokenFile,
        AWS_ENDPOINT_URL_STS: `http://127.0.0.1:${port}`,
        AWS_EC2_METADATA_DISABLED: 'true',
      },
      stdio: 'ignore',
    });
    await new Promise((resolve) => child.once('close', resolve));
    const [exchange = expect.fail(), list = expect.fail()] = requests;
    expect(exchange.body.toString()).toContain('WebIdentityToken=the-token-of-the-service-account');
    expect(list.headers.authorization).toContain('Credential=ASIAEXCHANGED/');
    expect(list.headers['x-amz-security-token']).toBe('session');
  });

  it('keys are not asked for over a connection that trusts anybody', async () => {
    const { port, requests } = await serve(
      ({ method }) =>
        method === 'POST'
          ? { body: WEB_IDENTITY_ANSWER, headers: { 'content-type': 'text/xml' } }
          : { body: '' },
      true,
    );
    const tokenFile = join(work, 'token-tls');
    fs.writeFileSync(tokenFile, 'the-token-of-the-service-account');
    const bin = new URL('../../bin/longshore', import.meta.url).pathname;
    const location = `s3://bucket/?endpoint=https://127.0.0.1:${port}&insecureTls=true`;
    const child = spawn(bin, ['store', 'check', location], {
      env: {
        PATH: process.env.PATH,
        HOME: work,
        AWS_REGION: 'us-east-1',
        AWS_ROLE_ARN: 'arn:aws:iam::1:role/backup',
        AWS_WEB_IDENTITY_TOKEN_FILE: tokenFile,
        AWS_ENDPOINT_URL_STS: `https://127.0.0.1:${port}`,
        AWS_EC2_METADATA_DISABLED: 'true',
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const said = Array.fromAsync(child.stdout as AsyncIterable<Buffer>);
    await new Promise((resolve) => child.once('close', resolve));
    expect(requests.filter(({ method }) => method === 'POST')).toEqual([]);
    expect(Buffer.concat(await said).toString()).toMatch(/certificate/);
  });

  it('caFile adds to NODE_EXTRA_CA_CERTS', () => {
    const agents = new URL('../../src/blob/http/agents.ts', import.meta.url).href;
    const other = join(work, 'other-ca.pem');
    fs.writeFileSync(other, '-----BEGIN CERTIFICATE-----\nother\n-----END CERTIFICATE-----\n');
    const script = `
      const { trustedAuthorities } = await import(${JSON.stringify(agents)});
      console.log(JSON.stringify(trustedAuthorities({ caFile: ${JSON.stringify(other)} })));`;
    const { stdout } = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
      env: { ...process.env, NODE_EXTRA_CA_CERTS: TLS_CERTIFICATE },
      encoding: 'utf8',
      maxBuffer: 1 << 26,
    });
    const trusted = (JSON.parse(stdout) as string[]).map((pem) => pem.replaceAll(/\s/g, ''));
    const extra = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/.exec(
      fs.readFileSync(TLS_CERTIFICATE, 'utf8'),
    );
    expect(trusted).toContain(extra?.[0].replaceAll(/\s/g, ''));
    expect(trusted.at(-1)).toContain('other');
    expect(trusted.length).toBeGreaterThan(50);
  });

  it('proxies of the environment are heeded, and so are their exceptions', async () => {
    const { port, requests } = await serve(() => ({}));
    const proxied = {
      ...environment,
      HTTP_PROXY: `http://127.0.0.1:${port}`,
      NO_PROXY: '127.0.0.1',
    };
    const openAt = (endpoint: string): Promise<BlobStorage> =>
      openStorage(`s3://bucket/?endpoint=${endpoint}`, { environment: proxied });
    await using far = await openAt('http://store.example');
    await far.deleteBlob(ID);
    expect(requests[0]?.url).toMatch(/^http:\/\/store\.example\/bucket\//);
    await using near = await openAt(`http://127.0.0.1:${port}`);
    await near.deleteBlob(ID);
    expect(requests[1]?.url).toMatch(/^\/bucket\//);
  });

  it('TLS: an authority of its own, none, or none wanted', async () => {
    const { port } = await serve(() => ({}), true);
    const caFile = TLS_CERTIFICATE;
    await using trusted = await open(port, { caFile }, true);
    await trusted.deleteBlob(ID);
    await using unknown = await open(port, {}, true);
    await expect(unknown.deleteBlob(ID)).rejects.toMatchObject({
      code: 'STORAGE_TLS',
      retry: 'never',
    });
    await using careless = await open(port, { insecureTls: 'true' }, true);
    await careless.deleteBlob(ID);
    await using otherName = await openStorage(
      `s3://bucket/?${new URLSearchParams({ endpoint: `https://localhost:${port}`, caFile }).toString()}`,
      { environment },
    );
    await expect(otherName.deleteBlob(ID)).rejects.toThrow(/for another name: check the endpoint/);
    await using plain = await open(port);
    await expect(plain.deleteBlob(ID)).rejects.toThrow(/delete of .* failed/);
  });
});

describe('answers of S3', () => {
  it.each([
    [403, 'AccessDenied', 'STORAGE_DENIED', 'never', /their permissions/],
    [403, 'InvalidAccessKeyId', 'STORAGE_CREDENTIALS', 'never', /does not know this access key/],
    [403, 'SignatureDoesNotMatch', 'STORAGE_CREDENTIALS', 'never', /secret key/],
    [400, 'ExpiredToken', 'STORAGE_CREDENTIALS', 'never', /session token has expired/],
    [404, 'NoSuchBucket', 'STORAGE_NOT_FOUND', 'never', /no such bucket/],
    [404, 'NoSuchKey', 'BLOB_NOT_FOUND', 'never', /is not in the storage/],
    [403, 'RequestTimeTooSkewed', 'STORAGE_CLOCK', 'backoff', /clock of this machine/],
    [412, 'PreconditionFailed', 'BLOB_EXISTS', 'never', /412/],
    [409, 'OperationAborted', 'STORAGE_FAILED', 'backoff', /409 OperationAborted/],
    [503, 'SlowDown', 'STORAGE_THROTTLED', 'backoff', /lower the rate limits/],
    [429, 'TooManyRequests', 'STORAGE_THROTTLED', 'backoff', /lower the rate limits/],
    [500, 'InternalError', 'STORAGE_FAILED', 'backoff', /500 InternalError/],
    [502, 'BadGateway', 'STORAGE_FAILED', 'backoff', /502/],
    [400, 'BadDigest', 'STORAGE_FAILED', 'backoff', /changed in transit/],
    [507, 'XMinioStorageFull', 'STORAGE_FULL', 'never', /no space left/],
    [405, 'MethodNotAllowed', 'STORAGE_FAILED', 'never', /405/],
  ] as const)('%i %s is %s, retry %s', async (status, code, expected, retry, message) => {
    const { port } = await serve(() => ({ status, body: errorBody(code) }));
    await using storage = await open(port);
    const failure = storage.putBlob(ID, [Buffer.of(1)]);
    await expect(failure).rejects.toMatchObject({ code: expected, retry });
    await expect(failure).rejects.toThrow(message);
    if (expected !== 'BLOB_NOT_FOUND') await expect(failure).rejects.toThrow('s3://bucket/prefix/');
  });

  it('Retry-After is waited for, and the error at the end says how often it was tried', async () => {
    const { port, requests } = await serve(() => ({
      status: 503,
      headers: { 'retry-after': '0.2' },
      body: errorBody('SlowDown'),
    }));
    const storage = withRetries(await open(port), {
      attemptsMax: 3,
      firstDelayMs: 1,
      delayMsMax: 1000,
    });
    const start = performance.now();
    await expect(storage.getMetadata(ID)).rejects.toThrow(/tried 3 times in \d+ s/);
    expect(performance.now() - start).toBeGreaterThan(380);
    expect(requests).toHaveLength(3);
    await storage.close();
  });

  it('Retry-After is waited for in full, also when it is longer than the pauses of our own', async () => {
    const { port, requests } = await serve(() => ({
      status: 503,
      headers: { 'retry-after': '0.4' },
      body: errorBody('SlowDown'),
    }));
    const storage = withRetries(await open(port), {
      attemptsMax: 2,
      firstDelayMs: 1,
      delayMsMax: 10,
    });
    const start = performance.now();
    await expect(storage.getMetadata(ID)).rejects.toThrow(/tried 2 times/);
    expect(performance.now() - start).toBeGreaterThan(390);
    expect(requests).toHaveLength(2);
    await storage.close();
  });

  it('a listing is tried as often as any other request, not as often as its pages and itself', async () => {
    const { port, requests } = await serve(() => ({ status: 503, body: errorBody('SlowDown') }));
    const storage = withRetries(await open(port), {
      attemptsMax: 6,
      firstDelayMs: 1,
      delayMsMax: 2,
    });
    await expect(Array.fromAsync(storage.listBlobs('x'))).rejects.toThrow(/tried 6 times in/);
    expect(requests).toHaveLength(6);
    await storage.close();
  });

  it('a request that nothing answers is cut, and says so', async () => {
    const silent = createServer(() => undefined);
    servers.push(silent);
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
    const { port } = silent.address() as AddressInfo;
    const endpoint = `http://127.0.0.1:${port}`;
    await using storage = await openStorage(`s3://bucket/?endpoint=${endpoint}`, {
      environment,
      stallMs: 150,
    });
    const failure = storage.getBlob(ID);
    await expect(failure).rejects.toMatchObject({ code: 'STORAGE_STALLED', retry: 'backoff' });
    await expect(failure).rejects.toThrow(/nothing moved for/);
  });

  it('a put whose answer was lost is not mistaken for somebody else’s', async () => {
    const stored = new Map<string, Buffer>();
    let lost = 1;
    const { port } = await serve(({ method, url, body }) => {
      if (method === 'GET') {
        const found = stored.get(url.split('?')[0] ?? '') ?? Buffer.alloc(0);
        return {
          body: found.toString('latin1'),
          headers: { 'content-length': String(found.length) },
        };
      }
      const path = url.split('?')[0] ?? '';
      if (stored.has(path)) return { status: 412, body: errorBody('PreconditionFailed') };
      stored.set(path, body);
      return lost-- > 0 ? { status: 500, body: errorBody('InternalError') } : {};
    });
    const storage = withRetries(await open(port), { firstDelayMs: 1 });
    await storage.putBlob(ID, [Buffer.from('ours')], { doNotRecreate: true });
    await expect(
      storage.putBlob(ID, [Buffer.from('other')], { doNotRecreate: true }),
    ).rejects.toMatchObject({ code: 'BLOB_EXISTS' });
    await storage.close();
  });

  it('a service that knows no condition on puts is said to have no put-if-absent', async () => {
    const { port } = await serve(() => ({ status: 501, body: errorBody('NotImplemented') }));
    const storage = await open(port);
    await expect(
      storage.putBlob(ID, [Buffer.from('new')], { doNotRecreate: true }),
    ).rejects.toMatchObject({ code: 'UNSUPPORTED_PUT' });
    await storage.close();
  });
});
