import { generateKeyPairSync, sign } from 'node:crypto';
import { randomBytes } from './random.ts';

export interface Certificate {
  /** PEM of a self-signed certificate. */
  readonly certificate: string;
  readonly key: string;
}

const ECDSA_WITH_SHA256 = '2a8648ce3d040302';
const COMMON_NAME = '550403';
const SUBJECT_ALTERNATIVE_NAME = '551d11';
const BASIC_CONSTRAINTS = '551d13';
const DAY_MS = 86_400_000;
/** Test clusters do not live longer. */
const VALID_MS = 365 * DAY_MS;

/**
 * Creates a key and a certificate for the loopback addresses. Needed because kubectl and its
 * libraries send no token over plain HTTP (client-go: clientcmd, `IsConfigTransportTLS`). Node
 * creates keys and signatures. This file encodes the X.509 v3 certificate (RFC 5280).
 */
export function makeCertificate(nowMs: number, commonName = 'longshore-dev'): Certificate {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const algorithm = sequence(objectId(ECDSA_WITH_SHA256));
  const name = sequence(set(sequence(objectId(COMMON_NAME), der(0x0c, Buffer.from(commonName)))));
  const serial = Buffer.from(randomBytes(16));
  // DER requires a positive number without a leading zero byte.
  serial[0] = ((serial[0] ?? 0) & 0x3f) | 0x40;
  const names = sequence(
    der(0x82, Buffer.from('localhost')),
    der(0x87, Buffer.from([127, 0, 0, 1])),
    der(0x87, Buffer.concat([Buffer.alloc(15), Buffer.from([1])])),
  );
  const isAuthority = sequence(der(0x01, Buffer.from([0xff])));
  const body = sequence(
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, serial),
    algorithm,
    name,
    // Start a day early, so that clock differences do not matter.
    sequence(time(nowMs - DAY_MS), time(nowMs + VALID_MS)),
    name,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(
      0xa3,
      sequence(
        sequence(
          objectId(BASIC_CONSTRAINTS),
          der(0x01, Buffer.from([0xff])),
          der(0x04, isAuthority),
        ),
        sequence(objectId(SUBJECT_ALTERNATIVE_NAME), der(0x04, names)),
      ),
    ),
  );
  const signature = sign('sha256', body, privateKey);
  const whole = sequence(body, algorithm, der(0x03, Buffer.concat([Buffer.alloc(1), signature])));
  return {
    certificate: pem('CERTIFICATE', whole),
    key: pem('PRIVATE KEY', privateKey.export({ type: 'pkcs8', format: 'der' })),
  };
}

/** A DER value of ASN.1: tag, length, bytes. */
function der(tag: number, bytes: Buffer): Buffer {
  const { length } = bytes;
  const head =
    length < 0x80 ? [length] : length < 0x100 ? [0x81, length] : [0x82, length >> 8, length & 0xff];
  return Buffer.concat([Buffer.from([tag, ...head]), bytes]);
}

const sequence = (...parts: Buffer[]): Buffer => der(0x30, Buffer.concat(parts));
const set = (...parts: Buffer[]): Buffer => der(0x31, Buffer.concat(parts));
const objectId = (hex: string): Buffer => der(0x06, Buffer.from(hex, 'hex'));

/** GeneralizedTime. Only CAs must use UTCTime before 2050, and clients here do not check it. */
function time(ms: number): Buffer {
  const digits = new Date(ms).toISOString().replaceAll(/[-T:]/g, '').slice(0, 14);
  return der(0x18, Buffer.from(`${digits}Z`));
}

function pem(label: string, bytes: Buffer): string {
  const lines = bytes.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join('\n')}\n-----END ${label}-----\n`;
}
