import { crc32 } from 'node:zlib';
import { assert, isCode } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { gzipped } from './gzip.ts';
import { ScratchFile } from './scratch-file.ts';

/**
 * The text that is added to a log after the run. Several gzip files in a row are one file for every
 * reader. The last file is empty, and the extra field of its header has the length of the added
 * text. A later addition can therefore replace an earlier one. Two letters identify its subfield
 * (RFC 1952, 2.3.1.1).
 */
const SUBFIELD = [0x4c, 0x53];
/** A header, an extra field with eight bytes, an empty deflate block, checksum and length. */
export const TRAILER_BYTES = 10 + 2 + 4 + 8 + 2 + 8;

/** `addedBytes`: the length of the gzip file right before it. */
export function trailer(addedBytes: number): Buffer {
  const bytes = Buffer.alloc(TRAILER_BYTES);
  bytes.set([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 12, 0, ...SUBFIELD, 8, 0]);
  bytes.writeBigUInt64LE(BigInt(addedBytes), 16);
  bytes.set([3, 0], 24);
  bytes.writeUInt32LE(crc32(''), 26);
  return bytes;
}

/** Bytes at the end of a log that were added after the run, with the trailer; or 0. */
export function addedBytesOf(end: Uint8Array, lengthBytes: number): number {
  assert(end.length <= lengthBytes, 'the end of a log is a part of it');
  if (end.length < TRAILER_BYTES) return 0;
  const last = Buffer.from(end.subarray(end.length - TRAILER_BYTES));
  const added = Number(last.readBigUInt64LE(16));
  // Compares the whole trailer, because a log may have any bytes.
  if (!Number.isSafeInteger(added) || !last.equals(trailer(added))) return 0;
  return added + TRAILER_BYTES <= lengthBytes ? added + TRAILER_BYTES : 0;
}

export interface LogTailOptions extends SignalOptions {
  /** A folder for scratch files. */
  readonly directory: string;
}

/**
 * Replaces the added lines at the end of a log. The log is read as stored, and never unpacked.
 * Throws `SCRATCH_FULL`, `SCRATCH_FAILED`, and errors of the bucket.
 */
export async function putLogTail(
  bucket: Bucket,
  key: string,
  text: string,
  { directory, signal }: LogTailOptions,
): Promise<void> {
  await using old = await logOf(bucket, key, { directory, signal });
  const { lengthBytes } = old;
  const end = await Array.fromAsync(old.read(Math.max(0, lengthBytes - TRAILER_BYTES)));
  const keptBytes = lengthBytes - addedBytesOf(Buffer.concat(end), lengthBytes);
  const added = Buffer.concat(await Array.fromAsync(gzipped([Buffer.from(text)])));
  const body = async function* (): AsyncGenerator<Uint8Array> {
    yield* old.read(0, keptBytes);
    yield added;
    yield trailer(added.length);
  };
  await bucket.put(key, body(), { signal });
}

/** Empty if no log was stored: the added lines are useful alone. */
async function logOf(
  bucket: Bucket,
  key: string,
  { directory, signal }: LogTailOptions,
): Promise<ScratchFile> {
  try {
    return await ScratchFile.of(directory, bucket.get(key, { signal }));
  } catch (error) {
    if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    return ScratchFile.of(directory, []);
  }
}
