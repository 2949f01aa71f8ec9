import { createCipheriv, createDecipheriv, hkdfSync, randomFillSync } from 'node:crypto';
import { asBuffer, assert, CodedError } from '../../base/index.ts';
import type { Kernels, Spans } from '../wasm/kernels.ts';

/** Seals and opens contents and index blobs. One per thread. */
export interface Encryptor {
  /** Bytes that sealing adds: nonce and tag. */
  readonly overheadBytes: number;
  /**
   * Writes nonce, ciphertext and tag to `out`, which may be shared memory.
   * @param iv the last 16 bytes of the content's hash; for a pack's local index its whole hash.
   * @returns bytes written: plaintext + overhead
   */
  seal(plaintext: Spans, iv: Uint8Array, out: Uint8Array): number;
  /** Returns the plaintext in new memory; throws `DECRYPT_FAILED`. */
  open(packed: Uint8Array, iv: Uint8Array): Uint8Array;
  /** A stream form of `open`, for blobs too large for memory. The bytes count only after `final`. */
  openStream(nonce: Uint8Array, iv: Uint8Array): StreamOpener;
}

export interface StreamOpener {
  update(ciphertext: Uint8Array): Uint8Array;
  /** Throws `DECRYPT_FAILED`. */
  final(tag: Uint8Array): void;
}

type AeadName = 'aes-256-gcm' | 'chacha20-poly1305';

const ALGORITHMS: Record<string, AeadName> = {
  'AES256-GCM-HMAC-SHA256': 'aes-256-gcm',
  'CHACHA20-POLY1305-HMAC-SHA256': 'chacha20-poly1305',
};
export const ENCRYPTION_NAMES = Object.keys(ALGORITHMS);
export const DEFAULT_ENCRYPTION = 'AES256-GCM-HMAC-SHA256';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;
export const SEAL_OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES;
/** AES-GCM in slices of this size runs without page faults, measured against one update per content. */
const SLICE_BYTES = 128 * 1024;
/** Nonces are drawn in bulk: one call to the kernel's generator per content costs 1 us. */
const NONCE_POOL = 341;

/** Throws `UNKNOWN_ENCRYPTION`. `masterKey` is the repository's. */
export function createEncryptor(name: string, masterKey: Uint8Array, kernels: Kernels): Encryptor {
  const algorithm = ALGORITHMS[name];
  if (!algorithm) {
    throw new CodedError('UNKNOWN_ENCRYPTION', `encryption "${name}" is not known`, {
      facts: { encryption: name },
    });
  }
  return new AeadEncryptor(algorithm, masterKey, kernels);
}

class AeadEncryptor implements Encryptor {
  readonly overheadBytes = SEAL_OVERHEAD_BYTES;
  readonly #algorithm: AeadName;
  readonly #kernels: Kernels;
  readonly #derivation: ReturnType<Kernels['hmacSha256Key']>;
  readonly #nonces = Buffer.alloc(NONCE_POOL * NONCE_BYTES);
  #nextNonce = NONCE_POOL;

  constructor(algorithm: AeadName, masterKey: Uint8Array, kernels: Kernels) {
    this.#algorithm = algorithm;
    this.#kernels = kernels;
    // The purpose string is the salt and the info is empty: Kopia's order for content keys.
    const secret = new Uint8Array(hkdfSync('sha256', masterKey, 'encryption', '', 32));
    this.#derivation = kernels.hmacSha256Key(secret);
  }

  seal(plaintext: Spans, iv: Uint8Array, out: Uint8Array): number {
    const nonce = this.#nonce();
    const cipher = createCipheriv(this.#algorithm as 'aes-256-gcm', this.#key(iv), nonce, {
      authTagLength: TAG_BYTES,
    });
    cipher.setAAD(iv);
    out.set(nonce, 0);
    let at = NONCE_BYTES;
    for (const span of plaintext) {
      for (let from = 0; from < span.length; from += SLICE_BYTES) {
        const sealed = cipher.update(span.subarray(from, from + SLICE_BYTES));
        out.set(sealed, at);
        at += sealed.length;
      }
    }
    cipher.final();
    out.set(cipher.getAuthTag(), at);
    return at + TAG_BYTES;
  }

  open(packed: Uint8Array, iv: Uint8Array): Uint8Array {
    if (packed.length < SEAL_OVERHEAD_BYTES) throw decryptFailed();
    const end = packed.length - TAG_BYTES;
    const opener = this.openStream(packed.subarray(0, NONCE_BYTES), iv);
    const plaintext = opener.update(packed.subarray(NONCE_BYTES, end));
    opener.final(packed.subarray(end));
    return plaintext;
  }

  openStream(nonce: Uint8Array, iv: Uint8Array): StreamOpener {
    const decipher = createDecipheriv(this.#algorithm as 'aes-256-gcm', this.#key(iv), nonce, {
      authTagLength: TAG_BYTES,
    });
    decipher.setAAD(iv);
    return {
      update: (ciphertext) => decipher.update(ciphertext),
      final: (tag) => {
        decipher.setAuthTag(asBuffer(tag));
        try {
          decipher.final();
        } catch (cause) {
          throw decryptFailed(cause);
        }
      },
    };
  }

  #key(iv: Uint8Array): Uint8Array {
    return this.#kernels.hmacSha256Short(this.#derivation, iv);
  }

  #nonce(): Uint8Array {
    if (this.#nextNonce === NONCE_POOL) {
      randomFillSync(this.#nonces);
      this.#nextNonce = 0;
    }
    const at = this.#nextNonce++ * NONCE_BYTES;
    return this.#nonces.subarray(at, at + NONCE_BYTES);
  }
}

function decryptFailed(cause?: unknown): CodedError {
  return new CodedError('DECRYPT_FAILED', 'authentication failed: the bytes are damaged', {
    cause,
  });
}

/** The last 16 bytes of a content's hash: key derivation input and associated data at once. */
export function contentIv(hash: Uint8Array): Uint8Array {
  assert(hash.length >= 16, 'hash too short for an IV');
  return hash.subarray(hash.length - 16);
}
