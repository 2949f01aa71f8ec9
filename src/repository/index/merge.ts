import { closeSync, openSync, unlinkSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { randomHex } from '../../base/index.ts';
import { comparePrecedence, type IndexEntry } from './entry.ts';
import { fileSource, IndexBody, memorySource, type RowCursor } from './index-body.ts';
import { IndexV2Encoder } from './index-writer.ts';

/** An entry that is decoded only when asked for; valid until the next one is taken. */
export interface Row {
  readonly entry: IndexEntry;
}

/** Rows of several bodies in key order, one per content: the one that takes precedence. */
export function* mergeRows(cursors: Iterable<RowCursor>): Generator<RowCursor | Row> {
  const heap: RowCursor[] = [];
  for (const cursor of cursors) if (cursor.next()) push(heap, cursor);
  while (heap.length > 0) {
    const top = heap[0] as RowCursor;
    if (!hasTwin(heap)) {
      yield top;
      advance(heap);
      continue;
    }
    let best = top.entry;
    do {
      advance(heap);
      const { entry } = heap[0] as RowCursor;
      if (comparePrecedence(entry, best) > 0) best = entry;
    } while (hasTwin(heap));
    advance(heap);
    yield { entry: best };
  }
}

/** {@link mergeRows}, decoded. */
export function* mergeEntries(cursors: Iterable<RowCursor>): Generator<IndexEntry> {
  for (const row of mergeRows(cursors)) yield row.entry;
}

/** Whether another cursor stands at the same key as the first: then one of its children does. */
function hasTwin(heap: readonly RowCursor[]): boolean {
  const top = heap[0] as RowCursor;
  for (const child of [heap[1], heap[2]]) if (child && top.compare(child) === 0) return true;
  return false;
}

function push(heap: RowCursor[], cursor: RowCursor): void {
  let at = heap.push(cursor) - 1;
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if ((heap[parent] as RowCursor).compare(cursor) <= 0) break;
    heap[at] = heap[parent] as RowCursor;
    at = parent;
  }
  heap[at] = cursor;
}

/** Moves the first cursor on, and to its place. */
function advance(heap: RowCursor[]): void {
  if (!(heap[0] as RowCursor).next()) {
    const last = heap.pop() as RowCursor;
    if (heap.length === 0) return;
    heap[0] = last;
  }
  const cursor = heap[0] as RowCursor;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heap.length) break;
    const right = heap[child + 1];
    if (right && right.compare(heap[child] as RowCursor) < 0) child++;
    if ((heap[child] as RowCursor).compare(cursor) >= 0) break;
    heap[at] = heap[child] as RowCursor;
    at = child;
  }
  heap[at] = cursor;
}

/** A file that has no name any more: it goes away with its descriptor, also after SIGKILL. */
export function openScratchFile(directory: string = tmpdir()): number {
  const path = join(directory, `longshore-index-${randomHex(8)}`);
  const descriptor = openSync(path, 'wx+', 0o600);
  unlinkSync(path);
  return descriptor;
}

const CHUNK_BYTES = 1 << 20;

/** Bytes one after the other: held in memory up to a limit, from there on in a scratch file. */
class SpillingBytes {
  readonly #memoryBytesMax: number;
  readonly #full: Buffer[] = [];
  #chunk = Buffer.allocUnsafeSlow(CHUNK_BYTES);
  #filled = 0;
  /** Where the chunk begins. */
  #at: number;
  #file: number | undefined;

  /** Leaves room for a header, which comes last. */
  constructor(headerBytes: number, memoryBytesMax: number) {
    this.#at = headerBytes;
    this.#memoryBytesMax = memoryBytesMax;
  }

  /** Room for so many bytes at `offset`; the caller fills it at once. */
  claim(length: number): { bytes: Buffer; offset: number } {
    if (this.#filled + length > CHUNK_BYTES) this.#turn();
    const offset = this.#filled;
    this.#filled += length;
    return { bytes: this.#chunk, offset };
  }

  #turn(): void {
    if (this.#file === undefined && this.#at + this.#filled > this.#memoryBytesMax) this.#spill();
    if (this.#file === undefined) {
      this.#full.push(this.#chunk.subarray(0, this.#filled));
      this.#chunk = Buffer.allocUnsafeSlow(CHUNK_BYTES);
    } else {
      writeSync(this.#file, this.#chunk, 0, this.#filled, this.#at);
    }
    this.#at += this.#filled;
    this.#filled = 0;
  }

  #spill(): void {
    this.#file = openScratchFile();
    let at = this.#at;
    for (const bytes of this.#full.reverse()) {
      at -= bytes.length;
      writeSync(this.#file, bytes, 0, bytes.length, at);
    }
    this.#full.length = 0;
  }

  /** Everything, readable. */
  finish(header: Buffer, trailer: Buffer): IndexBody {
    this.#turn();
    if (this.#file === undefined) {
      return new IndexBody(memorySource(Buffer.concat([header, ...this.#full, trailer])));
    }
    writeSync(this.#file, trailer, 0, trailer.length, this.#at);
    writeSync(this.#file, header, 0, header.length, 0);
    return new IndexBody(fileSource(this.#file));
  }

  discard(): void {
    if (this.#file !== undefined) closeSync(this.#file);
  }
}

/** Collects rows in key order into a body that is kept in memory, or in a scratch file above `memoryBytesMax`. */
export function buildIndexBody(
  rows: Iterable<RowCursor | Row>,
  memoryBytesMax: number,
): IndexBody | undefined {
  const encoder = new IndexV2Encoder();
  const out = new SpillingBytes(IndexV2Encoder.headerBytes, memoryBytesMax);
  try {
    let count = 0;
    for (const row of rows) {
      count++;
      if ('copyKey' in row && encoder.canCopy(row)) {
        const { bytes, offset } = out.claim(row.keyBytes + encoder.entryBytes);
        encoder.copy(row, bytes, offset);
      } else {
        const { entry } = row;
        const { bytes, offset } = out.claim(encoder.rowBytes(entry));
        encoder.encode(entry, bytes, offset);
      }
    }
    if (count === 0) return undefined;
    return out.finish(encoder.header(), encoder.trailer());
  } catch (error) {
    out.discard();
    throw error;
  }
}
