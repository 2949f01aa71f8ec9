import { constants, read as readNow } from 'node:fs';
import * as fs from 'node:fs/promises';
import { promisify } from 'node:util';
import { asError, pinnedPath, posix, systemCode } from '../../base/index.ts';
import type { Span } from '../../codec/index.ts';
import { type FileRange, readRangeInto } from '../../volume-files/index.ts';

const read = promisify(readNow);
const { O_RDONLY, O_NONBLOCK } = constants;
/** Node has it on Linux only. */
const O_DIRECT = (constants as { O_DIRECT?: number }).O_DIRECT;
/**
 * Where direct reads begin and end. Devices want 512 or 4096: open(2). One that wants more says
 * `EINVAL`.
 */
const ALIGNMENT = 4096;
/** Of shorter ones what is read along would cost more than is won. Our choice. */
const LEAST_BYTES = 512 << 10;

/** A range of a file that is also open for direct reads. */
export interface DirectRange extends FileRange {
  readonly direct: number;
}

/**
 * Opens a file once more, for direct reads; undefined where its file system has none, and for a
 * short file. The caller closes it.
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
 * Whether a range is better read past the page cache: memory for its pages costs several times what
 * the read does, which was half of all work of a restore in place of a volume that nobody had read
 * before (1.2 s of CPU time for each GiB, against 0.1). What is in the cache already is taken from
 * there.
 */
export function isForDirectReads({ descriptor, offset, length }: FileRange): boolean {
  if (length < LEAST_BYTES) return false;
  return (posix().cachedBytes(descriptor, offset, length) ?? 0) < length / 2;
}

const windowOf = ({ offset, length }: FileRange): { from: number; to: number } => ({
  from: Math.floor(offset / ALIGNMENT) * ALIGNMENT,
  to: Math.ceil((offset + length) / ALIGNMENT) * ALIGNMENT,
});

/** Bytes of memory that a range takes, from where to where the device wants it read. */
export function directBytes(range: FileRange): number {
  const { from, to } = windowOf(range);
  return to - from;
}

/**
 * Reads a range into memory of the length that {@link directBytes} says: where its bytes are then.
 * What lies behind the file's end reads as zeros. No read is under way any more when it returns or
 * throws: `EINVAL` or `EOPNOTSUPP` where direct reads are not served, otherwise what the system
 * says.
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

/**
 * Of a read that does not begin or end where the device wants it, or that its file system does not
 * do.
 */
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
    // The end of the file, most likely: the rest is read in the way that takes any offset.
    readRangeInto({ descriptor, offset: offset + length }, buffer.subarray(length));
    return;
  }
}
