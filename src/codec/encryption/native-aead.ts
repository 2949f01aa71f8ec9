import { createCipheriv } from 'node:crypto';
import { type NativeLibrary, posix } from '../../base/index.ts';

/**
 * AES-256-GCM or ChaCha20-Poly1305 by the OpenSSL in Node, without Node's objects around it. For
 * contents of 10 KiB those objects take most of the time. Arguments are not kept.
 */
export interface NativeAead {
  /**
   * Writes ciphertext and tag to `out`, which has room for both. No part may lie in `out`. Returns
   * false if OpenSSL refuses; the bytes in `out` are then invalid.
   */
  seal(sealed: AeadInput, plaintext: readonly Uint8Array[], out: Uint8Array): boolean;
  /** Writes the plaintext to `out`. Returns false if the tag differs; `out` is then invalid. */
  open(opened: AeadInput, ciphertext: Uint8Array, tag: Uint8Array, out: Uint8Array): boolean;
}

export interface AeadInput {
  /** 32 bytes. */
  readonly key: Uint8Array;
  /** 12 bytes. */
  readonly nonce: Uint8Array;
  readonly associated: Uint8Array;
}

export type AeadName = 'aes-256-gcm' | 'chacha20-poly1305';

const CIPHERS: Record<AeadName, string> = {
  'aes-256-gcm': 'EVP_aes_256_gcm',
  'chacha20-poly1305': 'EVP_chacha20_poly1305',
};
const TAG_BYTES = 16;
/** https://docs.openssl.org/3.5/man3/EVP_EncryptInit/ */
const GET_TAG = 0x10;
const SET_TAG = 0x11;

const loaded = new Map<AeadName, NativeAead | undefined>();

/** Undefined if a self-test fails. A context serves one call at a time, so each thread has one. */
export function nativeAead(name: AeadName): NativeAead | undefined {
  if (!loaded.has(name)) loaded.set(name, loadAead(name));
  return loaded.get(name);
}

function loadAead(name: AeadName): NativeAead | undefined {
  try {
    const library = posix().program;
    const aead = library && new OpensslAead(library, name);
    return aead && saysTheSame(aead, name) ? aead : undefined;
  } catch {
    return undefined;
  }
}

type NativeFunction = (...values: unknown[]) => number;

class OpensslAead implements NativeAead {
  readonly #encryption: unknown;
  readonly #decryption: unknown;
  readonly #startSeal: NativeFunction;
  readonly #startOpen: NativeFunction;
  readonly #seal: NativeFunction;
  readonly #open: NativeFunction;
  readonly #endSeal: NativeFunction;
  readonly #endOpen: NativeFunction;
  readonly #control: NativeFunction;
  readonly #length = new Int32Array(1);
  readonly #rest = new Uint8Array(TAG_BYTES);

  constructor(library: NativeLibrary, name: AeadName) {
    const context = library.func('void *EVP_CIPHER_CTX_new()');
    const cipher = library.func(`void *${CIPHERS[name]}()`)();
    const start =
      'void *context, void *cipher, void *engine, const uint8_t *key, const uint8_t *iv';
    const update = 'void *context, uint8_t *out, int *length, const uint8_t *in, int inLength';
    const end = 'void *context, uint8_t *out, int *length';
    this.#startSeal = library.func(`int EVP_EncryptInit_ex(${start})`);
    this.#startOpen = library.func(`int EVP_DecryptInit_ex(${start})`);
    this.#seal = library.func(`int EVP_EncryptUpdate(${update})`);
    this.#open = library.func(`int EVP_DecryptUpdate(${update})`);
    this.#endSeal = library.func(`int EVP_EncryptFinal_ex(${end})`);
    this.#endOpen = library.func(`int EVP_DecryptFinal_ex(${end})`);
    this.#control = library.func(
      'int EVP_CIPHER_CTX_ctrl(void *context, int type, int length, uint8_t *bytes)',
    );
    this.#encryption = context();
    this.#decryption = context();
    // Each content then adds only a key and a nonce.
    const isReady =
      this.#startSeal(this.#encryption, cipher, null, null, null) === 1 &&
      this.#startOpen(this.#decryption, cipher, null, null, null) === 1;
    if (!isReady) throw new TypeError(`OpenSSL has no ${name}`);
  }

  seal(
    { key, nonce, associated }: AeadInput,
    plaintext: readonly Uint8Array[],
    out: Uint8Array,
  ): boolean {
    const context = this.#encryption;
    const length = this.#length;
    if (this.#startSeal(context, null, null, key, nonce) !== 1) return false;
    if (this.#seal(context, null, length, associated, associated.length) !== 1) return false;
    let at = 0;
    for (const part of plaintext) {
      if (part.length === 0) continue;
      const place = out.subarray(at, at + part.length);
      if (this.#seal(context, place, length, part, part.length) !== 1) return false;
      if (length[0] !== part.length) return false;
      at += part.length;
    }
    if (this.#endSeal(context, this.#rest, length) !== 1) return false;
    return this.#control(context, GET_TAG, TAG_BYTES, out.subarray(at, at + TAG_BYTES)) === 1;
  }

  open(
    { key, nonce, associated }: AeadInput,
    ciphertext: Uint8Array,
    tag: Uint8Array,
    out: Uint8Array,
  ): boolean {
    const context = this.#decryption;
    const length = this.#length;
    if (this.#startOpen(context, null, null, key, nonce) !== 1) return false;
    if (this.#open(context, null, length, associated, associated.length) !== 1) return false;
    if (ciphertext.length > 0) {
      if (this.#open(context, out, length, ciphertext, ciphertext.length) !== 1) return false;
      if (length[0] !== ciphertext.length) return false;
    }
    if (this.#control(context, SET_TAG, TAG_BYTES, tag) !== 1) return false;
    return this.#endOpen(context, this.#rest, length) === 1;
  }
}

/** Lengths around one block, and around many blocks. */
const LENGTHS = [0, 1, 15, 16, 17, 4097];

/** Whether it seals as Node does, opens its own output, and rejects a changed tag. */
function saysTheSame(aead: NativeAead, name: AeadName): boolean {
  const key = Uint8Array.from({ length: 32 }, (_byte, i) => 7 * i + 1);
  const nonce = Uint8Array.from({ length: 12 }, (_byte, i) => 5 * i + 2);
  const associated = Uint8Array.from({ length: 16 }, (_byte, i) => 3 * i + 3);
  return LENGTHS.every((length) => {
    const plaintext = Buffer.from(Array.from({ length }, (_byte, i) => 11 * i + (i >> 8)));
    const options = { authTagLength: TAG_BYTES };
    const cipher = createCipheriv(name as 'aes-256-gcm', key, nonce, options).setAAD(associated);
    const expected = [cipher.update(plaintext), cipher.final(), cipher.getAuthTag()];
    const parts = [plaintext.subarray(0, length / 3), plaintext.subarray(length / 3)];
    const out = Buffer.alloc(length + TAG_BYTES);
    const input = { key, nonce, associated };
    if (!aead.seal(input, parts, out) || !out.equals(Buffer.concat(expected))) return false;
    const tag = Buffer.from(out.subarray(length));
    const opened = Buffer.alloc(length);
    const isOpened = aead.open(input, out.subarray(0, length), tag, opened);
    if (!isOpened || !opened.equals(plaintext)) return false;
    tag[3] = (tag[3] as number) ^ 1;
    return !aead.open(input, out.subarray(0, length), tag, opened);
  });
}
