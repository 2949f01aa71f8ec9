import { crc32 } from 'node:zlib';
import { assert, isCode } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { gzipped } from './gzip.ts';
import { ScratchFile } from './scratch-file.ts';

/**
 * What is added to the log of a backup or restore after its run. Gzip files that follow each other
 * are one file to every reader; the last one here is empty, and has the length of what was added in
 * the extra field of its header. So whoever adds again, after a kill or since more is known,
 * replaces what was added before. Its subfield is found by two letters (RFC 1952, 2.3.1.1).
 */
const SUBFIELD = [0x4c, 0x53];
/**
 * Header, extra field of one subfield with eight bytes, nothing deflated, checksum and length of
 * nothing.
 */
export const TRAILER_BYTES = 10 + 2 + 4 + 8 + 2 + 8;

/** `addedBytes`: of the gzip file right before it. */
export function trailer(addedBytes: number): Buffer {
  const bytes = Buffer.alloc(TRAILER_BYTES);
  bytes.set([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 12, 0, ...SUBFIELD, 8, 0]);
  bytes.writeBigUInt64LE(BigInt(addedBytes), 16);
  bytes.set([3, 0], 24);
  bytes.writeUInt32LE(crc32(''), 26);
  return bytes;
}

/**
 * How many bytes at the end of a log were added after the run, trailer included; 0 where none were.
 */
export function addedBytesOf(end: Uint8Array, lengthBytes: number): number {
  assert(end.length <= lengthBytes, 'the end of a log is a part of it');
  if (end.length < TRAILER_BYTES) return 0;
  const last = Buffer.from(end.subarray(end.length - TRAILER_BYTES));
  const added = Number(last.readBigUInt64LE(16));
  // Compared as a whole: the bytes of a log may look like anything.
  if (!Number.isSafeInteger(added) || !last.equals(trailer(added))) return 0;
  return added + TRAILER_BYTES <= lengthBytes ? added + TRAILER_BYTES : 0;
}

/** Where the bytes of a log wait while something is added to it. */
export interface LogTailOptions extends SignalOptions {
  /** Scratch space. */
  readonly directory: string;
}

/**
 * Adds lines to the end of a log, in place of those that were added before. The log is read as it
 * is stored, and never unpacked. Throws what the bucket throws, and `SCRATCH_FULL`,
 * `SCRATCH_FAILED`.
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

/**
 * Empty where none was stored: the log is for people, and what is added to it is worth reading
 * alone.
 */
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
