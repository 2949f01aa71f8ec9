/**
 * Requests and replies with many small items, as a few arrays of numbers. A structured clone takes
 * about 2 us for each object. For a file of 4 KiB that is as much as hashing it.
 */
import { assert, SECOND_NS } from '../base/index.ts';
import type { Span } from '../codec/index.ts';
import type {
  BytePath,
  FileRead,
  FileToRead,
  NewFile,
  OpenItem,
  FileRange,
  RangeToCompare,
  SealedItem,
  SealItem,
} from '../volume-files/index.ts';

function joinHashes(hashes: readonly Uint8Array[]): Uint8Array {
  const bytes = hashes[0]?.length ?? 0;
  const joined = new Uint8Array(bytes * hashes.length);
  hashes.forEach((hash, i) => {
    assert(hash.length === bytes, 'hashes of one repository are equally long');
    joined.set(hash, i * bytes);
  });
  return joined;
}

const hashAt = (hashes: Uint8Array, i: number, count: number): Uint8Array => {
  const bytes = hashes.length / count;
  return hashes.subarray(i * bytes, (i + 1) * bytes);
};

/** For each item: number of spans, compressor, then address and length of each span. */
export interface SealRequest {
  readonly numbers: Uint32Array;
  readonly hashes: Uint8Array;
}

export function packSealItems(items: readonly SealItem[]): SealRequest {
  const spans = items.reduce((sum, item) => sum + item.spans.length, 0);
  const numbers = new Uint32Array(2 * items.length + 2 * spans);
  let at = 0;
  for (const item of items) {
    numbers[at++] = item.spans.length;
    numbers[at++] = item.compressionHeaderId;
    for (const { address, length } of item.spans) {
      numbers[at++] = address;
      numbers[at++] = length;
    }
  }
  return { numbers, hashes: joinHashes(items.map(({ hash }) => hash)) };
}

export function unpackSealItems({ numbers, hashes }: SealRequest): SealItem[] {
  const items: Omit<SealItem, 'hash'>[] = [];
  for (let at = 0; at < numbers.length;) {
    const count = numbers[at++] as number;
    const compressionHeaderId = numbers[at++] as number;
    const spans: Span[] = [];
    for (let i = 0; i < count; i++) {
      spans.push({ address: numbers[at++] as number, length: numbers[at++] as number });
    }
    items.push({ spans, compressionHeaderId });
  }
  return items.map((item, i) => ({ ...item, hash: hashAt(hashes, i, items.length) }));
}

/** Packed length and compressor of each item. */
export const packSealed = (sealed: readonly SealedItem[]): Uint32Array =>
  Uint32Array.from(
    sealed.flatMap(({ packedLength, compressionHeaderId }) => [packedLength, compressionHeaderId]),
  );

export const unpackSealed = (numbers: Uint32Array): SealedItem[] =>
  Array.from({ length: numbers.length / 2 }, (_, i) => ({
    packedLength: numbers[2 * i] as number,
    compressionHeaderId: numbers[2 * i + 1] as number,
  }));

export interface ReadFilesRequest {
  readonly paths: readonly (string | Uint8Array)[];
  readonly sizes: Float64Array;
}

export const packFilesToRead = (files: readonly FileToRead[]): ReadFilesRequest => ({
  paths: files.map(({ path }) => path),
  sizes: Float64Array.from(files, ({ sizeBytes }) => sizeBytes),
});

export const unpackFilesToRead = ({ paths, sizes }: ReadFilesRequest): FileToRead[] =>
  paths.map((path, i) => ({ path, sizeBytes: sizes[i] as number }));

/** Length of each file, or one of these codes. Files lie one after the other in the slab. */
const GREW = -1;
const FAILED = -2;

export interface FileReads {
  readonly lengths: Float64Array;
  readonly hashes: Uint8Array;
  readonly errors: readonly (readonly [index: number, code: string, message: string])[];
}

export function packFileReads(reads: readonly FileRead[]): FileReads {
  return {
    lengths: Float64Array.from(reads, ({ length, grew, error }) =>
      error ? FAILED : grew ? GREW : length,
    ),
    hashes: joinHashes(reads.map(({ hash }) => hash)),
    errors: reads.flatMap(({ error }, i) =>
      error ? [[i, error.code, error.message] as const] : [],
    ),
  };
}

export function unpackFileReads({ lengths, hashes, errors }: FileReads): FileRead[] {
  let offset = 0;
  const reads = Array.from(lengths, (length, i): FileRead => {
    const present = Math.max(0, length);
    const read = { offset, length: present, hash: hashAt(hashes, i, lengths.length) };
    offset += present;
    return { ...read, grew: length === GREW };
  });
  for (const [i, code, message] of errors) {
    reads[i] = { ...(reads[i] as FileRead), error: { code, message } };
  }
  return reads;
}

const RANGE_NUMBERS = 3;

/** Descriptor, offset and length of each range, and of each range to read ahead. */
export interface CompareRequest {
  readonly numbers: Float64Array;
  readonly hashes: Uint8Array;
  readonly ahead: Float64Array;
}

export const packCompared = (
  ranges: readonly RangeToCompare[],
  ahead: readonly FileRange[],
): CompareRequest => ({
  numbers: packRanges(ranges),
  hashes: joinHashes(ranges.map(({ hash }) => hash)),
  ahead: packRanges(ahead),
});

export function unpackCompared({ numbers, hashes }: CompareRequest): RangeToCompare[] {
  const ranges = unpackRanges(numbers);
  return ranges.map((range, i) => ({ ...range, hash: hashAt(hashes, i, ranges.length) }));
}

function packRanges(ranges: readonly FileRange[]): Float64Array {
  const numbers = new Float64Array(RANGE_NUMBERS * ranges.length);
  ranges.forEach(({ descriptor, offset, length }, i) => {
    numbers.set([descriptor, offset, length], RANGE_NUMBERS * i);
  });
  return numbers;
}

export const unpackRanges = (numbers: Float64Array): FileRange[] =>
  Array.from({ length: numbers.length / RANGE_NUMBERS }, (_, i) => {
    const number = (k: number): number => numbers[RANGE_NUMBERS * i + k] as number;
    return { descriptor: number(0), offset: number(1), length: number(2) };
  });

/** Numbers of each item: span, compressor, length and flags. The target adds two or three. */
const OPEN_NUMBERS = 8;
const COMPRESSED_OBJECT = 1;
const SPARSE = 2;
const NEW_FILE = 4;
const PLACED = 8;
const REPLACES = 16;
const DROPS_LISTS = 32;

export interface OpenRequest {
  readonly numbers: Float64Array;
  readonly hashes: Uint8Array;
  /** Two paths for each new file, in the order of the items: its own, and its place or ''. */
  readonly paths: readonly BytePath[];
  /** Seconds and nanoseconds. As nanoseconds alone, times after 2262 do not fit. */
  readonly times: BigInt64Array;
  /** Texts of extra attributes, by the index of the new file. */
  readonly extras: readonly (readonly [number, string])[];
}

export function packOpenItems(items: readonly OpenItem[]): OpenRequest {
  const numbers = new Float64Array(OPEN_NUMBERS * items.length);
  const files: NewFile[] = [];
  items.forEach((item, i) => {
    const { span, compressionHeaderId, originalLength, compressedObject, target } = item;
    const isNew = 'path' in target;
    const flags =
      (compressedObject ? COMPRESSED_OBJECT : 0) +
      (isNew ? NEW_FILE : 0) +
      (isNew && target.place ? PLACED : 0) +
      (isNew && target.place?.replaces ? REPLACES : 0) +
      (isNew && target.attributes.dropsLists ? DROPS_LISTS : 0) +
      (!isNew && target.sparse ? SPARSE : 0);
    const at = OPEN_NUMBERS * i;
    numbers.set([span.address, span.length, compressionHeaderId, originalLength, flags], at);
    if (isNew) {
      files.push(target);
      const { mode, uid, gid } = target.attributes;
      numbers.set([mode, uid, gid], at + 5);
    } else {
      numbers.set([target.descriptor, target.offset], at + 5);
    }
  });
  return {
    numbers,
    hashes: joinHashes(items.map(({ hash }) => hash)),
    paths: files.flatMap(({ path, place }) => [path, place?.path ?? '']),
    times: BigInt64Array.from(
      files.flatMap(({ attributes: { mtimeNs } }) => [mtimeNs / SECOND_NS, mtimeNs % SECOND_NS]),
    ),
    extras: files.flatMap(({ attributes: { extra } }, i) =>
      extra === undefined ? [] : ([[i, extra]] as const),
    ),
  };
}

export function unpackOpenItems(request: OpenRequest): OpenItem[] {
  const { numbers, hashes, paths, times } = request;
  const extras = new Map(request.extras);
  let file = 0;
  const count = numbers.length / OPEN_NUMBERS;
  return Array.from({ length: count }, (_, i): OpenItem => {
    const number = (k: number): number => numbers[OPEN_NUMBERS * i + k] as number;
    const flags = number(4);
    const item = {
      span: { address: number(0), length: number(1) },
      hash: hashAt(hashes, i, count),
      compressionHeaderId: number(2),
      originalLength: number(3),
      compressedObject: (flags & COMPRESSED_OBJECT) !== 0,
    };
    if ((flags & NEW_FILE) === 0) {
      const sparse = (flags & SPARSE) !== 0;
      return { ...item, target: { descriptor: number(5), offset: number(6), sparse } };
    }
    const mtimeNs = (times[2 * file] as bigint) * SECOND_NS + (times[2 * file + 1] as bigint);
    const extra = extras.get(file);
    const dropsLists = (flags & DROPS_LISTS) !== 0;
    const [mode, uid, gid] = [number(5), number(6), number(7)];
    const attributes = { mode, uid, gid, mtimeNs, extra, dropsLists };
    const [path, placePath] = [paths[2 * file] as BytePath, paths[2 * file + 1] as BytePath];
    file++;
    const isPlaced = (flags & PLACED) !== 0;
    const place = isPlaced ? { path: placePath, replaces: (flags & REPLACES) !== 0 } : undefined;
    return { ...item, target: { path, attributes, place } };
  });
}
