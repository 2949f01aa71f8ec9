import { createHmac } from 'node:crypto';
import * as zlib from 'node:zlib';
import { assert, encodeUvarint, decodeUvarint, type RandomBytes } from '../../base/index.ts';
import type { BlobId } from '../../blob/index.ts';
import type { Encryptor, ContentHasher } from '../../codec/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { encodeIndex, sortEntries } from '../index/index-writer.ts';

/** Random bytes at the start of a pack. Kopia's minimum and maximum (content_manager.go). */
const PREAMBLE_BYTES = 32;
/** The local index starts at a multiple of this. */
const ALIGNMENT = 4096;
/** Random bytes after a local index, to make its blob unique. */
const INDEX_SUFFIX_BYTES = 32;

/**
 * A pack with this many contents is full, even if it is short. Each entry takes about 350 bytes of
 * memory until an index names it, and a pack could hold half a million tiny files. Our choice:
 * entries take at most as much memory as the pack itself.
 */
export const PACK_ENTRIES_MAX = 1 << 16;

export interface PackCodec {
  hasher: ContentHasher;
  encryptor: Encryptor;
  indexVersion: number;
  random: RandomBytes;
}

/** A pack being filled. `buffer` may be shared memory. `finish` returns the whole blob. */
export class Pack {
  readonly blobId: BlobId;
  readonly buffer: Uint8Array;
  readonly entries: IndexEntry[] = [];
  /** Deleted contents of other packs, written to the local index for a rebuilt index. */
  marks: readonly IndexEntry[] = [];
  #length = 0;
  #isClosing = false;

  constructor(blobId: BlobId, buffer: Uint8Array, replica: Uint8Array, random: RandomBytes) {
    this.blobId = blobId;
    this.buffer = buffer;
    buffer.set(replica, 0);
    buffer.set(random(PREAMBLE_BYTES), replica.length);
    this.#length = replica.length + PREAMBLE_BYTES;
  }

  get length(): number {
    return this.#length;
  }

  /** Makes the pack count as full. */
  close(): void {
    this.#isClosing = true;
  }

  isFull(maxPackBytes: number): boolean {
    const { length } = this.entries;
    return this.#isClosing || this.#length >= maxPackBytes || length >= PACK_ENTRIES_MAX;
  }

  get room(): number {
    return this.buffer.length - this.#length;
  }

  /** Counts bytes written at `length`, and returns their offset. */
  advance(bytes: number): number {
    const offset = this.#length;
    this.#length += bytes;
    assert(this.#length <= this.buffer.length, 'pack buffer overrun');
    return offset;
  }

  /** The blob in pieces, with padding, local index and postamble. The first is the buffer. */
  finish(codec: PackCodec): Uint8Array[] {
    const padding = codec.random(ALIGNMENT - (this.#length % ALIGNMENT));
    const body = Buffer.concat([
      encodeIndex(codec.indexVersion, sortEntries([...this.entries, ...this.marks])),
      codec.random(INDEX_SUFFIX_BYTES),
    ]);
    const iv = codec.hasher.hash([body]);
    const sealed = new Uint8Array(body.length + codec.encryptor.overheadBytes);
    codec.encryptor.seal([body], iv, sealed);
    const indexAt = this.#length + padding.length;
    const postamble = encodePostamble(iv, indexAt, sealed.length);
    return [this.buffer.subarray(0, this.#length), padding, sealed, postamble];
  }
}

function encodePostamble(iv: Uint8Array, offset: number, length: number): Uint8Array {
  const fields = Buffer.concat([
    encodeUvarint(1),
    encodeUvarint(iv.length),
    iv,
    encodeUvarint(offset),
    encodeUvarint(length),
  ]);
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32BE(zlib.crc32(fields));
  const lengthByte = Uint8Array.of(fields.length + 4);
  return Buffer.concat([fields, checksum, lengthByte]);
}

/** Reads the end of a pack. Returns undefined if the postamble is invalid. */
export function decodePostamble(
  tail: Uint8Array,
): { iv: Uint8Array; offset: number; length: number } | undefined {
  const bytes = Buffer.from(tail.buffer, tail.byteOffset, tail.length);
  const length = bytes.at(-1) ?? 0;
  const start = bytes.length - 1 - length;
  if (length < 5 || start < 0) return undefined;
  const fields = bytes.subarray(start, bytes.length - 5);
  if (zlib.crc32(fields) !== bytes.readUInt32BE(bytes.length - 5)) return undefined;
  const version = decodeUvarint(fields, 0);
  const ivLength = version && decodeUvarint(fields, version.next);
  if (!ivLength || version.value !== 1 || ivLength.next + ivLength.value > fields.length) {
    return undefined;
  }
  const afterIv = ivLength.next + ivLength.value;
  const offset = decodeUvarint(fields, afterIv);
  const indexLength = offset && decodeUvarint(fields, offset.next);
  if (!indexLength || indexLength.next !== fields.length) return undefined;
  const iv = Uint8Array.from(fields.subarray(ivLength.next, afterIv));
  return { iv, offset: offset.value, length: indexLength.value };
}

/** Copy of kopia.repository before the preamble if `enablePasswordChange` is off, for recovery. */
export function formatReplica(formatBlob: Uint8Array): Uint8Array {
  const hmac = createHmac('sha256', 'kopia-repository').update(formatBlob).digest();
  const length = Buffer.alloc(2);
  length.writeUInt16LE(formatBlob.length + hmac.length);
  return Buffer.concat([length, formatBlob, hmac, length]);
}
