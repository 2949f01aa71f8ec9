import {
  createCipheriv,
  createDecipheriv,
  createHash,
  hkdfSync,
  pbkdf2,
  scrypt,
} from 'node:crypto';
import { promisify } from 'node:util';
import { CodedError, randomBytes, type Secret } from '../../base/index.ts';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;
export const SCRYPT = 'scrypt-65536-8-1';
export const PBKDF2 = 'pbkdf2-sha256-600000';

/** Recently derived keys, 0.1 s and 64 MiB each. Reopening and password changes reuse them. */
const derived = new Map<string, Promise<Uint8Array>>();
const DERIVED_MAX = 8;

/** A 32-byte key from the password, with `uniqueId` as salt. Throws `UNKNOWN_KEY_DERIVATION`. */
export function deriveFormatKey(
  password: Secret,
  keyAlgorithm: string,
  uniqueId: Uint8Array,
): Promise<Uint8Array> {
  const name = createHash('sha256')
    .update(JSON.stringify([keyAlgorithm, password.reveal()]))
    .update(uniqueId)
    .digest('hex');
  const known = derived.get(name);
  if (known) return known;
  const key = derive(password, keyAlgorithm, uniqueId);
  derived.set(name, key);
  key.catch(() => derived.delete(name));
  const [oldest] = derived.keys();
  if (derived.size > DERIVED_MAX && oldest !== undefined) derived.delete(oldest);
  return key;
}

async function derive(
  password: Secret,
  keyAlgorithm: string,
  uniqueId: Uint8Array,
): Promise<Uint8Array> {
  const text = Buffer.from(password.reveal(), 'utf8');
  switch (keyAlgorithm) {
    case SCRYPT:
      // scrypt needs 64 MiB here. Node's default limit is lower.
      return new Promise((resolve, reject) => {
        const options = { N: 65_536, r: 8, p: 1, maxmem: 96 << 20 };
        scrypt(text, uniqueId, 32, options, (error, key) => {
          if (error) reject(error);
          else resolve(key);
        });
      });
    case PBKDF2:
      return promisify(pbkdf2)(text, uniqueId, 600_000, 32, 'sha256');
    default:
      throw new CodedError(
        'UNKNOWN_KEY_DERIVATION',
        `blob kopia.repository asks for the key derivation "${keyAlgorithm}", which is not known`,
      );
  }
}

/** HKDF-SHA256 with the unique ID as salt, as Kopia derives format and maintenance keys. */
export function derivePurposeKey(key: Uint8Array, uniqueId: Uint8Array, purpose: string): Buffer {
  return Buffer.from(hkdfSync('sha256', key, uniqueId, purpose, 32));
}

/** AES-256-GCM output: nonce, ciphertext, tag. */
export function sealAesGcm(key: Uint8Array, aad: Uint8Array, plaintext: Uint8Array): Buffer {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv('aes-256-gcm', key, nonce);
  cipher.setAAD(aad);
  return Buffer.concat([nonce, cipher.update(plaintext), cipher.final(), cipher.getAuthTag()]);
}

/** Throws `DECRYPT_FAILED`. */
export function openAesGcm(key: Uint8Array, aad: Uint8Array, sealed: Uint8Array): Buffer {
  const end = sealed.length - TAG_BYTES;
  if (end < NONCE_BYTES) throw new CodedError('DECRYPT_FAILED', 'encrypted part is cut short');
  const decipher = createDecipheriv('aes-256-gcm', key, sealed.subarray(0, NONCE_BYTES));
  decipher.setAAD(aad);
  decipher.setAuthTag(sealed.subarray(end));
  try {
    return Buffer.concat([decipher.update(sealed.subarray(NONCE_BYTES, end)), decipher.final()]);
  } catch (cause) {
    throw new CodedError('DECRYPT_FAILED', 'authentication failed', { cause });
  }
}

/** Seals kopia.blobcfg and the inner part of kopia.repository. */
export function sealFormat(key: Uint8Array, uniqueId: Uint8Array, plaintext: Uint8Array): Buffer {
  const aad = derivePurposeKey(key, uniqueId, 'CHECKSUM');
  return sealAesGcm(derivePurposeKey(key, uniqueId, 'AES'), aad, plaintext);
}

export function openFormat(key: Uint8Array, uniqueId: Uint8Array, sealed: Uint8Array): Buffer {
  const aad = derivePurposeKey(key, uniqueId, 'CHECKSUM');
  return openAesGcm(derivePurposeKey(key, uniqueId, 'AES'), aad, sealed);
}
