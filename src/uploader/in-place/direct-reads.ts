import { constants, read as readNow } from 'node:fs';
import * as fs from 'node:fs/promises';
import { promisify } from 'node:util';
import { asError, pinnedPath, posix, systemCode } from '../../base/index.ts';
import type { Span } from '../../codec/index.ts';
import { type FileRange, readRangeInto } from '../../volume-files/index.ts';

const read = promisify(readNow);
const { O_RDONLY, O_NONBLOCK } = constants;
/** Node defines it only on Linux. */
const O_DIRECT = (constants as { O_DIRECT?: number }).O_DIRECT;
/** Devices require 512 or 4096: open(2). A device that requires more returns `EINVAL`. */
const ALIGNMENT = 4096;
/** For shorter ranges, the extra bytes of aligned reads cost more than they save. Our choice. */
const LEAST_BYTES = 512 << 10;

/** A range of a file that is also open for direct reads. */
export interface DirectRange extends FileRange {
  readonly direct: number;
}

/**
 * Opens a file again for direct reads. Undefined for a short file, and if its file system has no
 * direct reads. The caller closes it.
 */
export async function openForDirectReads(
  descriptor: number,
  sizeBytes: number,
): Promise<fs.FileHandle | undefined> {
  if (O_DIRECT === undefined || sizeBytes < LEAST_BYTES) return undefined;
  try {
    return await fs.open(pinnedPath(descriptor), O_RDONLY | O_NONBLOCK | O_DIRECT);
  } catch {
    return undefined;
  }
}

/**
 * Whether a range is better read past the page cache. Memory for its pages costs several times as
 * much as the read. That was half of the work of a restore in place of a cold volume (1.2 s of CPU
 * time for each GiB, against 0.1). A mostly cached range is read from the cache.
 */
export function isForDirectReads({ descriptor, offset, length }: FileRange): boolean {
  if (length < LEAST_BYTES) return false;
  return (posix().cachedBytes(descriptor, offset, length) ?? 0) < length / 2;
}

const windowOf = ({ offset, length }: FileRange): { from: number; to: number } => ({
  from: Math.floor(offset / ALIGNMENT) * ALIGNMENT,
  to: Math.ceil((offset + length) / ALIGNMENT) * ALIGNMENT,
});

/** Bytes of memory for a range, with its alignment. */
export function directBytes(range: FileRange): number {
  const { from, to } = windowOf(range);
  return to - from;
}

/**
 * Reads a range into memory of {@link directBytes} bytes, and returns the spans with its bytes.
 * Bytes behind the file's end read as zeros. When it returns or throws, no read is running. Throws
 * `EINVAL` or `EOPNOTSUPP` without direct reads, and other system errors.
 */
export async function readDirectly(
  range: DirectRange,
  room: readonly Span[],
  bytes: Uint8Array,
): Promise<Span[]> {
  const reads: Promise<void>[] = [];
  const spans: Span[] = [];
  let at = windowOf(range).from;
  for (const { address, length } of room) {
    reads.push(readPart(range, at, bytes.subarray(address, address + length)));
    const skipped = Math.max(0, range.offset - at);
    const end = Math.min(length, range.offset + range.length - at);
    if (end > skipped) spans.push({ address: address + skipped, length: end - skipped });
    at += length;
  }
  const ends = await Promise.allSettled(reads);
  const failed = ends
    .filter((end) => end.status === 'rejected')
    .map(({ reason }) => asError(reason));
  const [first] = failed;
  if (first) throw failed.find(isRefusal) ?? first;
  return spans;
}

/** Errors of an unaligned direct read, or of a file system without direct reads. */
export const isRefusal = (error: unknown): boolean =>
  ['EINVAL', 'EOPNOTSUPP'].includes(systemCode(error) ?? '');

async function readPart(
  { direct, descriptor }: DirectRange,
  offset: number,
  buffer: Uint8Array,
): Promise<void> {
  let length = 0;
  while (length < buffer.length) {
    const { bytesRead } = await read(direct, buffer, length, buffer.length - length, offset + length); // prettier-ignore
    length += bytesRead;
    if (bytesRead > 0 && bytesRead % ALIGNMENT === 0) continue;
    // Probably the end of the file. The rest is read without alignment.
    readRangeInto({ descriptor, offset: offset + length }, buffer.subarray(length));
    return;
  }
}
