import { comparePrecedence, type IndexEntry } from './entry.ts';
import { memorySource } from './byte-source.ts';
import { IndexBody, type IndexRows } from './index-body.ts';
import { IndexV2Encoder } from './index-writer.ts';
import { type OpenScratch, ScratchFile } from './scratch-file.ts';

/** A row that decodes its entry on access. Valid until the next row is read. */
export interface Row {
  readonly entry: IndexEntry;
  /** The body and position of the row. */
  readonly body: IndexBody;
  readonly position: number;
}

/** Called for each entry that another entry of the same content replaces. */
export type OnSuperseded = (entry: IndexEntry) => void;

/** Rows of several bodies in key order. For each content, only the row that takes precedence. */
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

/** A row that stays valid when the cursor moves. */
const rowAt = ({ entry, body, position }: IndexRows): Row => ({ entry, body, position });

/** Decoded {@link mergeRows}. */
export function* mergeEntries(
  cursors: Iterable<IndexRows>,
  onSuperseded?: OnSuperseded,
): Generator<IndexEntry> {
  for (const row of mergeRows(cursors, onSuperseded)) yield row.entry;
}

/** Whether another cursor has the first one's key. In a heap, a child then has it. */
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

/** Advances the first cursor and restores the heap. */
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

/** A byte sequence in memory that moves to a scratch file above a limit. */
class SpillingBytes {
  readonly #memoryBytesMax: number;
  readonly #full: Buffer[] = [];
  #chunk = Buffer.allocUnsafeSlow(CHUNK_BYTES);
  #filled = 0;
  /** Start of the chunk. */
  #at: number;
  #file: ScratchFile | undefined;
  readonly #openScratch: OpenScratch;

  /** Leaves room for a header, which is written last. */
  constructor(headerBytes: number, memoryBytesMax: number, openScratch: OpenScratch) {
    this.#at = headerBytes;
    this.#openScratch = openScratch;
    this.#memoryBytesMax = memoryBytesMax;
  }

  /** Room for `length` bytes at `offset`. The caller fills it at once. */
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

  /** Returns the finished body. */
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

/** A body of rows in key order, in a file above `memoryBytesMax`. Undefined without rows. */
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
