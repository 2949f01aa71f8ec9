import {
  createCipheriv,
  createDecipheriv,
  type DecipherGCM,
  hkdfSync,
  randomBytes,
} from 'node:crypto';
import { assert, CodedError } from '../../base/index.ts';
import type { Body } from '../../blob/index.ts';
import { damaged } from '../damaged-error.ts';

/**
 * The format of an encrypted file: a header, then pieces of {@link PIECE_BYTES}, each with a tag.
 * The header has the magic, the ID of the key, a salt, and the UID of the owner. HKDF makes a key
 * for each file from the salt. The nonce of a piece has its number and marks the last piece.
 * Truncated, swapped or recombined files fail. The header and the place are authenticated, too.
 */
const MAGIC = Buffer.from('LSCRYPT1');
const KEY_ID_BYTES = 8;
const SALT_BYTES = 16;
const FIXED_BYTES = MAGIC.length + KEY_ID_BYTES + SALT_BYTES + 1;
/** Our choice: larger pieces are not faster, and each reader holds one. */
const PIECE_BYTES = 64 << 10;
const TAG_BYTES = 16;
const NONCE_BYTES = 12;

/** A key with its ID, which is 16 hexadecimal digits. */
export interface FileKey {
  readonly id: string;
  readonly key: Buffer;
}

/** Where a file belongs. A reader without the UID accepts any. */
export interface FilePlace {
  readonly key: string;
  readonly ownerUid?: string | undefined;
  /** If set, a reader refuses a plain file. */
  readonly isSealed?: boolean | undefined;
}

interface Header {
  readonly bytes: Buffer;
  readonly keyId: string;
  readonly salt: Buffer;
  readonly ownerUid: string;
}

/** Encrypts a body. Memory is bounded by the pieces of the body. */
export async function* encrypted(
  body: Body,
  { id, key }: FileKey,
  place: FilePlace,
): AsyncGenerator<Uint8Array> {
  const header = newHeader(id, place.ownerUid ?? '');
  yield header.bytes;
  const cipher = new PieceCipher(key, header, place.key);
  for await (const { bytes, isLast } of inPieces(body, PIECE_BYTES)) {
    yield cipher.seal(bytes, isLast);
  }
}

/**
 * Decrypts a file. `plain` reads an unencrypted file. `keyOf` finds a key by its ID. Throws
 * `DAMAGED_ARCHIVE` for a changed file, `NO_ARCHIVE_KEY`, and errors of the body.
 */
export async function* decrypted(
  body: Body,
  keyOf: (id: string) => Buffer | undefined,
  place: FilePlace,
  plain = refusedIfSealed,
): AsyncGenerator<Uint8Array> {
  const start = new Start(body);
  try {
    const magic = await start.peek(MAGIC.length);
    if (!magic.equals(MAGIC)) {
      yield* plain(start.rest(), place);
      return;
    }
    const header = await readHeader(start, place);
    const key = keyOf(header.keyId);
    if (!key) throw noKey(place.key);
    if (place.ownerUid !== undefined && !['', place.ownerUid].includes(header.ownerUid)) {
      throw damaged(place.key, 'it belongs to another backup or restore of this name');
    }
    const cipher = new PieceCipher(key, header, place.key);
    for await (const { bytes, isLast } of inPieces(start.rest(), PIECE_BYTES + TAG_BYTES)) {
      yield cipher.open(bytes, isLast);
    }
  } finally {
    await start.close();
  }
}

function refusedIfSealed(
  body: AsyncIterable<Uint8Array>,
  { key, isSealed }: FilePlace,
): AsyncIterable<Uint8Array> {
  if (isSealed === true) throw damaged(key, 'it is not encrypted');
  return body;
}

/** Enough to detect an encrypted file. */
export const ENCRYPTED_START_BYTES = MAGIC.length;

/** Reads the start of a file. Throws `UNSUPPORTED_URL` if it is encrypted. */
export async function assertPlain(key: string, body: Body): Promise<void> {
  const start = new Start(body);
  try {
    if (!(await start.peek(MAGIC.length)).equals(MAGIC)) return;
  } finally {
    await start.close();
  }
  const text = `${key} is encrypted, and only Longshore can read it: use the commands "longshore backup" and "longshore restore"`;
  throw new CodedError('UNSUPPORTED_URL', text);
}

const noKey = (key: string): CodedError =>
  new CodedError(
    'NO_ARCHIVE_KEY',
    `${key} is encrypted with a repository password that is not here: add its key with "longshore repository add-archive-keys"`,
  );

function newHeader(keyId: string, ownerUid: string): Header {
  const salt = randomBytes(SALT_BYTES);
  const uid = Buffer.from(ownerUid);
  assert(uid.length < 256, 'UIDs are short');
  const bytes = Buffer.concat([MAGIC, Buffer.from(keyId, 'hex'), salt, Buffer.of(uid.length), uid]);
  assert(bytes.length === FIXED_BYTES + uid.length, 'the ID of a key has 16 digits');
  return { bytes, keyId, salt, ownerUid };
}

async function readHeader(start: Start, { key }: FilePlace): Promise<Header> {
  const fixed = await start.take(FIXED_BYTES);
  const uid = await start.take(fixed.at(-1) ?? 0);
  if (fixed.length < FIXED_BYTES || uid.length < (fixed.at(-1) ?? 0)) {
    throw damaged(key, 'it ends too early');
  }
  const saltAt = MAGIC.length + KEY_ID_BYTES;
  return {
    bytes: Buffer.concat([fixed, uid]),
    keyId: fixed.toString('hex', MAGIC.length, saltAt),
    salt: fixed.subarray(saltAt, saltAt + SALT_BYTES),
    ownerUid: uid.toString(),
  };
}

/** Encrypts and decrypts the pieces of one file, in order. */
class PieceCipher {
  readonly #fileKey: Buffer;
  readonly #about: Buffer;
  readonly #place: string;
  #number = 0;

  constructor(key: Buffer, header: Header, place: string) {
    const info = 'longshore archive encryption 1';
    this.#fileKey = Buffer.from(hkdfSync('sha256', key, header.salt, info, 32));
    this.#about = Buffer.concat([header.bytes, Buffer.from(`\0${place}`)]);
    this.#place = place;
  }

  #nonce(isLast: boolean): Buffer {
    const nonce = Buffer.alloc(NONCE_BYTES);
    assert(this.#number < 2 ** 32, 'a file has fewer than 2^32 pieces');
    nonce.writeUInt32BE(this.#number++, NONCE_BYTES - 5);
    nonce[NONCE_BYTES - 1] = isLast ? 1 : 0;
    return nonce;
  }

  seal(bytes: Buffer, isLast: boolean): Buffer {
    const cipher = createCipheriv('aes-256-gcm', this.#fileKey, this.#nonce(isLast));
    cipher.setAAD(this.#about);
    return Buffer.concat([cipher.update(bytes), cipher.final(), cipher.getAuthTag()]);
  }

  open(bytes: Buffer, isLast: boolean): Buffer {
    if (bytes.length < TAG_BYTES) throw damaged(this.#place, 'it ends too early');
    const decipher: DecipherGCM = createDecipheriv(
      'aes-256-gcm',
      this.#fileKey,
      this.#nonce(isLast),
      { authTagLength: TAG_BYTES },
    );
    decipher.setAAD(this.#about);
    const end = bytes.length - TAG_BYTES;
    decipher.setAuthTag(bytes.subarray(end));
    try {
      return Buffer.concat([decipher.update(bytes.subarray(0, end)), decipher.final()]);
    } catch (cause) {
      const why = 'it was changed or cut after it was encrypted, or it is another file';
      throw damaged(this.#place, why, cause);
    }
  }
}

/** Splits a body into pieces of one length. There is always a last piece, which may be shorter. */
async function* inPieces(
  body: Body,
  length: number,
): AsyncGenerator<{ readonly bytes: Buffer; readonly isLast: boolean }> {
  let piece = Buffer.allocUnsafeSlow(length);
  let filled = 0;
  for await (const given of body) {
    for (let rest = given; rest.length > 0;) {
      if (filled === length) {
        yield { bytes: piece, isLast: false };
        piece = Buffer.allocUnsafeSlow(length);
        filled = 0;
      }
      const count = Math.min(rest.length, length - filled);
      piece.set(rest.subarray(0, count), filled);
      filled += count;
      rest = rest.subarray(count);
    }
  }
  yield { bytes: piece.subarray(0, filled), isLast: true };
}

/** A body whose first bytes can be peeked. */
class Start {
  readonly #source: AsyncIterator<Uint8Array> | Iterator<Uint8Array>;
  #ahead = Buffer.alloc(0);

  constructor(body: Body) {
    this.#source =
      Symbol.asyncIterator in body ? body[Symbol.asyncIterator]() : body[Symbol.iterator]();
  }

  /** Returns fewer bytes only if the body has no more. */
  async peek(length: number): Promise<Buffer> {
    while (this.#ahead.length < length) {
      const next = await this.#source.next();
      if (next.done === true) break;
      this.#ahead = Buffer.concat([this.#ahead, next.value]);
    }
    return this.#ahead.subarray(0, length);
  }

  async take(length: number): Promise<Buffer> {
    const taken = await this.peek(length);
    this.#ahead = this.#ahead.subarray(taken.length);
    return taken;
  }

  async *rest(): AsyncGenerator<Uint8Array> {
    if (this.#ahead.length > 0) yield this.#ahead;
    this.#ahead = Buffer.alloc(0);
    for (;;) {
      const next = await this.#source.next();
      if (next.done === true) return;
      yield next.value;
    }
  }

  async close(): Promise<void> {
    await this.#source.return?.();
  }
}
