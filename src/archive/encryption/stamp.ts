import { createHash, createHmac, hkdfSync, timingSafeEqual } from 'node:crypto';
import { damaged } from '../damaged-error.ts';
import type { FileKey } from './encrypted-body.ts';

/**
 * A stamp authenticates a gzip file that Velero reads, too. The stamp is an empty gzip member at
 * the end, with our subfield in its extra field: the ID of the key and an HMAC-SHA256. The HMAC
 * covers the file's key in the bucket, and the SHA-256 of all bytes before. RFC 1952 allows several
 * members. Readers skip the field.
 */
const START = Buffer.from([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff]);
const SUBFIELD = Buffer.from('LS');
const KEY_ID_BYTES = 8;
const MAC_BYTES = 32;
const DATA_BYTES = KEY_ID_BYTES + MAC_BYTES;
/** An empty deflate block, its CRC-32 and its length. */
const END = Buffer.from([3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
const FIXED = Buffer.concat([START, u16(SUBFIELD.length + 2 + DATA_BYTES), SUBFIELD, u16(DATA_BYTES)]); // prettier-ignore
const STAMP_BYTES = FIXED.length + DATA_BYTES + END.length;

function u16(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16LE(value);
  return bytes;
}

function macOf(key: Buffer, place: string, sha256: Buffer): Buffer {
  const own = Buffer.from(hkdfSync('sha256', key, '', 'longshore file stamp 1', 32));
  return createHmac('sha256', own).update(`${place}\0`).update(sha256).digest();
}

/** A gzip file with a stamp. `place`: its key in the bucket. */
export async function* stamped(
  body: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  { id, key }: FileKey,
  place: string,
): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  for await (const piece of body) {
    hash.update(piece);
    yield piece;
  }
  yield Buffer.concat([FIXED, Buffer.from(id, 'hex'), macOf(key, place, hash.digest()), END]);
}

/**
 * A file without its stamp. Throws `DAMAGED_ARCHIVE` at the end for a wrong stamp. If `isSealed`,
 * also throws it for a missing stamp, and for the stamp of an unknown key.
 */
export async function* unstamped(
  body: AsyncIterable<Uint8Array>,
  keyOf: (id: string) => Buffer | undefined,
  { key: place, isSealed }: { readonly key: string; readonly isSealed?: boolean | undefined },
): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  let last = Buffer.alloc(0);
  for await (const piece of body) {
    last = Buffer.concat([last, piece]);
    const ahead = last.subarray(0, Math.max(0, last.length - STAMP_BYTES));
    last = last.subarray(ahead.length);
    hash.update(ahead);
    if (ahead.length > 0) yield ahead;
  }
  const isStamped =
    last.length === STAMP_BYTES &&
    last.subarray(0, FIXED.length).equals(FIXED) &&
    last.subarray(-END.length).equals(END);
  const id = last.toString('hex', FIXED.length, FIXED.length + KEY_ID_BYTES);
  const key = isStamped ? keyOf(id) : undefined;
  if (!key) {
    if (isSealed === true) throw damaged(place, 'this cluster has not written it');
    if (!isStamped) yield last;
    return;
  }
  const told = last.subarray(FIXED.length + KEY_ID_BYTES, -END.length);
  if (timingSafeEqual(macOf(key, place, hash.digest()), told)) return;
  throw damaged(place, 'it was changed by somebody else');
}
