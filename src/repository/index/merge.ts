import { comparePrecedence, type IndexEntry } from './entry.ts';
import { memorySource } from './byte-source.ts';
import { IndexBody, type IndexRows } from './index-body.ts';
import { IndexV2Encoder } from './index-writer.ts';
import { type OpenScratch, ScratchFile } from './scratch-file.ts';

/** An entry that is decoded only when asked for; valid until the next one is taken. */
export interface Row {
  readonly entry: IndexEntry;
  /** Where the row is. */
  readonly body: IndexBody;
  readonly position: number;
}

/** Told of each entry that gives way to another one of the same content. */
export type OnSuperseded = (entry: IndexEntry) => void;

/** Rows of several bodies in key order, one per content: the one that takes precedence. */
export function* mergeRows(
  cursors: Iterable<IndexRows>,
  onSuperseded?: OnSuperseded,
): Generator<IndexRows | Row> {
  const heap: IndexRows[] = [];
  for (const cursor of cursors) if (cursor.next()) push(heap, cursor);
  while (heap.length > 0) {
    const top = heap[0] as IndexRows;
    if (!hasTwin(heap)) {
      yield top;
      advance(heap);
      continue;
    }
    let best = rowAt(top);
    do {
      advance(heap);
      const next = rowAt(heap[0] as IndexRows);
      const isBetter = comparePrecedence(next.entry, best.entry) > 0;
      onSuperseded?.(isBetter ? best.entry : next.entry);
      if (isBetter) best = next;
    } while (hasTwin(heap));
    advance(heap);
    yield best;
  }
}

/** What a cursor stands at, as it stays when the cursor goes on. */
const rowAt = ({ entry, body, position }: IndexRows): Row => ({ entry, body, position });

/** {@link mergeRows}, decoded. */
export function* mergeEntries(
  cursors: Iterable<IndexRows>,
  onSuperseded?: OnSuperseded,
): Generator<IndexEntry> {
  for (const row of mergeRows(cursors, onSuperseded)) yield row.entry;
}

/** Whether another cursor stands at the same key as the first: then one of its children does. */
function hasTwin(heap: readonly IndexRows[]): boolean {
  const top = heap[0] as IndexRows;
  for (const child of [heap[1], heap[2]]) if (child && top.compare(child) === 0) return true;
  return false;
}

function push(heap: IndexRows[], cursor: IndexRows): void {
  let at = heap.push(cursor) - 1;
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if ((heap[parent] as IndexRows).compare(cursor) <= 0) break;
    heap[at] = heap[parent] as IndexRows;
    at = parent;
  }
  heap[at] = cursor;
}

/** Moves the first cursor on, and to its place. */
function advance(heap: IndexRows[]): void {
  if (!(heap[0] as IndexRows).next()) {
    const last = heap.pop() as IndexRows;
    if (heap.length === 0) return;
    heap[0] = last;
  }
  const cursor = heap[0] as IndexRows;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heap.length) break;
    const right = heap[child + 1];
    if (right && right.compare(heap[child] as IndexRows) < 0) child++;
    if ((heap[child] as IndexRows).compare(cursor) >= 0) break;
    heap[at] = heap[child] as IndexRows;
    at = child;
  }
  heap[at] = cursor;
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
  #file: ScratchFile | undefined;
  readonly #openScratch: OpenScratch;

  /** Leaves room for a header, which comes last. */
  constructor(headerBytes: number, memoryBytesMax: number, openScratch: OpenScratch) {
    this.#at = headerBytes;
    this.#openScratch = openScratch;
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
      this.#file.write(this.#chunk.subarray(0, this.#filled), this.#at);
    }
    this.#at += this.#filled;
    this.#filled = 0;
  }

  #spill(): void {
    this.#file = this.#openScratch();
    let at = this.#at;
    for (const bytes of this.#full.reverse()) {
      at -= bytes.length;
      this.#file.write(bytes, at);
    }
    this.#full.length = 0;
  }

  /** Everything, readable. */
  finish(header: Buffer, trailer: Buffer): IndexBody {
    this.#turn();
    if (this.#file === undefined) {
      return new IndexBody(memorySource(Buffer.concat([header, ...this.#full, trailer])));
    }
    this.#file.write(trailer, this.#at);
    this.#file.write(header, 0);
    return new IndexBody(this.#file.toSource());
  }

  discard(): void {
    this.#file?.close();
  }
}

/**
 * Collects rows in key order into a body that is kept in memory, or in a scratch file above
 * `memoryBytesMax`.
 */
export function buildIndexBody(
  rows: Iterable<IndexRows | Pick<Row, 'entry'>>,
  memoryBytesMax: number,
  openScratch: OpenScratch = () => new ScratchFile(),
): IndexBody | undefined {
  const encoder = new IndexV2Encoder();
  const out = new SpillingBytes(IndexV2Encoder.headerBytes, memoryBytesMax, openScratch);
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
    if (count === 0) {
      out.discard();
      return undefined;
    }
    return out.finish(encoder.header(), encoder.trailer());
  } catch (error) {
    out.discard();
    throw error;
  }
}
