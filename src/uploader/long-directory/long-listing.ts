import { isUtf8 } from 'node:buffer';
import * as fs from 'node:fs/promises';
import { CodedError, joinPath } from '../../base/index.ts';
import {
  type BytePath,
  type DirectoryListing,
  type ExtraRules,
  fsPath,
  isAt,
  linkError,
  OPENS_MAX,
  pathOf,
  STAT_FIELDS,
  type ThreadPool,
} from '../../volume-files/index.ts';
import { ScratchFile } from '../../repository/index.ts';
import { entryAt, isRepeated, type SourceEntry } from '../listing/listing.ts';

const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = fs.constants;
/** Names in one task of a thread, and entries in one page. Our choice. */
const BATCH_NAMES = 2048;
/** Records sorted in memory. Further runs go to a scratch file. */
const RUN_BYTES = 4 << 20;
/** Bytes read of each run at a time. */
const CURSOR_BYTES = 64 << 10;
/** A record: lengths and type, attributes, name and link target. Extra attributes are last. */
const HEAD_BYTES = 16;
const STAT_BYTES = STAT_FIELDS * 8;
const NAME_AT = HEAD_BYTES + STAT_BYTES;
/** Names have up to 255 bytes, and targets 4095. Extra attributes take most of it. */
const RECORD_BYTES_MAX = 2 << 20;
const S_IFMT = 0o170000n;
const S_IFDIR = 0o040000n;

/** An entry that could not be read. */
export interface LookFailure {
  readonly rawName: string | Uint8Array;
  readonly code: string;
  readonly message: string;
}

export interface LongListingOptions {
  readonly pool: Pick<ThreadPool, 'lookAt'>;
  readonly signal: AbortSignal;
  readonly rules?: ExtraRules | undefined;
  readonly onUnread?: (rawName: string | Uint8Array, message: string) => void;
  readonly onFailure: (failure: LookFailure) => void;
  /** Bytes of records sorted in memory; tests lower it. */
  readonly runBytes?: number;
}

const DIRENTS = 1024;
async function openDirectory(path: BytePath): Promise<DirectoryOfBytes> {
  for (let opens = 0; opens < OPENS_MAX; opens++) {
    await using directory = await fs.open(fsPath(path), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    // The directory may have been renamed meanwhile.
    if (!isAt(directory.fd, path)) continue;
    // Opens the directory of the descriptor again.
    return (await fs.opendir(fsPath(joinPath(pathOf(directory.fd, path), '.')), {
      encoding: 'buffer' as BufferEncoding,
      bufferSize: DIRENTS,
    })) as unknown as DirectoryOfBytes;
  }
  throw linkError(path);
}
type DirectoryOfBytes = AsyncIterable<{ name: Buffer }>;

/** Whether a directory has more than `max` names. Reads no further. Throws system errors. */
export async function hasMoreNames(path: string | Uint8Array, max: number): Promise<boolean> {
  let count = 0;
  for await (const { name } of await openDirectory(path)) {
    if (name.length > 0 && ++count > max) return true;
  }
  return false;
}

/**
 * Entries of a directory in stored order, a few thousand at a time, for any number of entries.
 * Sorted runs go to a scratch file and are merged. Throws system errors of the directory,
 * `SCRATCH_FULL`, `SCRATCH_UNUSABLE`.
 */
export async function* listLong(
  path: string | Uint8Array,
  options: LongListingOptions,
): AsyncGenerator<SourceEntry[]> {
  const runs = new SortedRuns(options.runBytes ?? RUN_BYTES);
  try {
    for await (const names of nameBatches(path)) {
      options.signal.throwIfAborted();
      const packed = Buffer.concat(names.flatMap((name) => [name, Buffer.of(0)]));
      const listing = await options.pool.lookAt(path, packed, options.rules);
      for (const [i, message] of listing.unread ?? []) {
        options.onUnread?.(rawNameOf(names[i] as Buffer), message);
      }
      addRecords(runs, names, listing, options.onFailure);
    }
    let batch: SourceEntry[] = [];
    let last: SourceEntry | undefined;
    for (const { bytes, at } of runs.merge()) {
      const entry = decodeRecord(bytes, at);
      if (isRepeated(entry, last)) continue;
      last = entry;
      batch.push(entry);
      if (batch.length < BATCH_NAMES) continue;
      yield batch;
      batch = [];
    }
    if (batch.length > 0) yield batch;
  } finally {
    runs.close();
  }
}

async function* nameBatches(path: string | Uint8Array): AsyncGenerator<Buffer[]> {
  let batch: Buffer[] = [];
  for await (const { name } of await openDirectory(path)) {
    batch.push(name);
    if (batch.length < BATCH_NAMES) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}

function addRecords(
  runs: SortedRuns,
  names: readonly Buffer[],
  { stats, targets, extras, failures }: DirectoryListing,
  onFailure: (failure: LookFailure) => void,
): void {
  const failed = new Set(failures.map(([i]) => i));
  for (const [i, code, message] of failures) {
    onFailure({ rawName: rawNameOf(names[i] as Buffer), code, message });
  }
  const targetOf = new Map(targets);
  const extraOf = new Map(extras);
  const statBytes = Buffer.from(stats.buffer, stats.byteOffset, stats.byteLength);
  names.forEach((name, i) => {
    if (failed.has(i)) return;
    const target = targetOf.get(i);
    const extra = extraOf.get(i) ?? '';
    const extraAt = NAME_AT + name.length + (target?.length ?? 0);
    const length = extraAt + extra.length;
    const { bytes, at } = runs.claim(length);
    const isDirectory = ((stats[i * STAT_FIELDS] as bigint) & S_IFMT) === S_IFDIR;
    bytes.writeUInt32LE(length, at);
    bytes.writeUInt16LE(isDirectory ? 0 : 1, at + 4);
    bytes.writeUInt16LE(name.length, at + 6);
    bytes.writeInt32LE(target ? target.length : -1, at + 8);
    bytes.writeUInt32LE(extra.length, at + 12);
    statBytes.copy(bytes, at + HEAD_BYTES, i * STAT_BYTES, (i + 1) * STAT_BYTES);
    bytes.set(name, at + NAME_AT);
    if (target) bytes.set(target, at + NAME_AT + name.length);
    bytes.write(extra, at + extraAt, 'latin1');
  });
}

const rawNameOf = (name: Uint8Array): string | Uint8Array =>
  isUtf8(name) ? Buffer.from(name).toString() : Uint8Array.from(name);

function decodeRecord(bytes: Buffer, at: number): SourceEntry {
  const nameEnd = at + NAME_AT + bytes.readUInt16LE(at + 6);
  const targetLength = bytes.readInt32LE(at + 8);
  const extraLength = bytes.readUInt32LE(at + 12);
  const extraAt = nameEnd + Math.max(0, targetLength);
  const target =
    targetLength < 0 ? undefined : Uint8Array.from(bytes.subarray(nameEnd, nameEnd + targetLength));
  return entryAt(
    rawNameOf(bytes.subarray(at + NAME_AT, nameEnd)),
    (k) => bytes.readBigInt64LE(at + HEAD_BYTES + 8 * k),
    target,
    extraLength === 0 ? undefined : bytes.toString('latin1', extraAt, extraAt + extraLength),
  );
}

/** Directories first, then by the bytes of the name. */
function compareRecords(a: Buffer, atA: number, b: Buffer, atB: number): number {
  const kinds = a.readUInt16LE(atA + 4) - b.readUInt16LE(atB + 4);
  if (kinds !== 0) return kinds;
  const endA = atA + NAME_AT + a.readUInt16LE(atA + 6);
  const endB = atB + NAME_AT + b.readUInt16LE(atB + 6);
  return a.compare(b, atB + NAME_AT, endB, atA + NAME_AT, endA);
}

interface RecordPlace {
  readonly bytes: Buffer;
  readonly at: number;
}

/** Records that are sorted in runs, and merged at the end. */
class SortedRuns {
  readonly #runBytes: number;
  readonly #run: Buffer;
  #places: number[] = [];
  #filled = 0;
  #file: ScratchFile | undefined;
  /** End of each run in the file. */
  readonly #ends: number[] = [];

  constructor(runBytes: number) {
    this.#runBytes = runBytes;
    this.#run = Buffer.allocUnsafeSlow(runBytes + RECORD_BYTES_MAX);
  }

  /** Room for a record, which the caller fills at once. */
  claim(length: number): RecordPlace {
    if (length > RECORD_BYTES_MAX) {
      throw new CodedError(
        'NAME_TOO_LONG',
        'a name or a link is longer than any file system allows',
      );
    }
    if (this.#filled >= this.#runBytes) this.#spill();
    const at = this.#filled;
    this.#places.push(at);
    this.#filled += length;
    return { bytes: this.#run, at };
  }

  #sorted(): number[] {
    const bytes = this.#run;
    return this.#places.sort((a, b) => compareRecords(bytes, a, bytes, b));
  }

  #spill(): void {
    const sorted = Buffer.allocUnsafeSlow(this.#filled);
    let length = 0;
    for (const at of this.#sorted()) {
      length += this.#run.copy(sorted, length, at, at + this.#run.readUInt32LE(at));
    }
    const start = this.#ends.at(-1) ?? 0;
    this.#file ??= new ScratchFile();
    this.#file.write(sorted.subarray(0, length), start);
    this.#ends.push(start + length);
    this.#places = [];
    this.#filled = 0;
  }

  /** All records in order. Each is valid until the next. */
  *merge(): Generator<RecordPlace> {
    if (this.#file === undefined) {
      for (const at of this.#sorted()) yield { bytes: this.#run, at };
      return;
    }
    if (this.#filled > 0) this.#spill();
    const file = this.#file;
    const cursors = this.#ends.map((end, i) => new RunCursor(file, this.#ends[i - 1] ?? 0, end));
    const heap = cursors.filter((cursor) => cursor.next());
    for (let i = heap.length >>> 1; i >= 0; i--) sink(heap, i);
    while (heap.length > 0) {
      const first = heap[0] as RunCursor;
      yield first;
      if (!first.next()) {
        const last = heap.pop() as RunCursor;
        if (heap.length === 0) return;
        heap[0] = last;
      }
      sink(heap, 0);
    }
  }

  close(): void {
    this.#file?.close();
    this.#file = undefined;
  }
}

function sink(heap: RunCursor[], start: number): void {
  const cursor = heap[start];
  if (!cursor) return;
  let at = start;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heap.length) break;
    const right = heap[child + 1];
    if (right && right.compare(heap[child] as RunCursor) < 0) child++;
    if ((heap[child] as RunCursor).compare(cursor) >= 0) break;
    heap[at] = heap[child] as RunCursor;
    at = child;
  }
  heap[at] = cursor;
}

/** Iterates over one run of the scratch file. */
class RunCursor implements RecordPlace {
  bytes = Buffer.allocUnsafeSlow(CURSOR_BYTES);
  at = 0;
  readonly #file: ScratchFile;
  readonly #end: number;
  #readTo: number;
  #filled = 0;
  #nextAt = 0;

  constructor(file: ScratchFile, start: number, end: number) {
    this.#file = file;
    this.#readTo = start;
    this.#end = end;
  }

  next(): boolean {
    this.at = this.#nextAt;
    if (!this.#hasWhole()) this.#fill();
    // The record's length may be known only now.
    if (this.#filled > this.at && !this.#hasWhole()) this.#fill();
    if (this.#filled === this.at) return false;
    this.#nextAt = this.at + this.bytes.readUInt32LE(this.at);
    return true;
  }

  compare(other: RunCursor): number {
    return compareRecords(this.bytes, this.at, other.bytes, other.at);
  }

  #hasWhole(): boolean {
    const held = this.#filled - this.at;
    return held >= 4 && held >= this.bytes.readUInt32LE(this.at);
  }

  #fill(): void {
    const before = this.bytes;
    const length = this.#filled - this.at >= 4 ? before.readUInt32LE(this.at) : 0;
    // Rare: one entry's extra attributes exceed the buffer.
    if (length > before.length) this.bytes = Buffer.allocUnsafeSlow(length);
    before.copy(this.bytes, 0, this.at, this.#filled);
    this.#filled -= this.at;
    this.at = 0;
    while (this.#filled < this.bytes.length && this.#readTo < this.#end) {
      const wanted = Math.min(this.bytes.length - this.#filled, this.#end - this.#readTo);
      const got = this.#file.read(this.bytes, this.#filled, wanted, this.#readTo);
      if (got === 0) throw new CodedError('SCRATCH_UNUSABLE', 'a scratch file was cut short');
      this.#filled += got;
      this.#readTo += got;
    }
  }
}
