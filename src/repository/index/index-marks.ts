import { type ContentId, keyBytesOf, writeContentKey } from './content-id.ts';
import { type IndexEntry, isHidden } from './entry.ts';
import type { IndexBody } from './index-body.ts';
import { badIndex } from './index-layout.ts';
import { mergeRows } from './merge.ts';

/**
 * Number of keys looked up together, which take 17 MB. Each read of a file serves about 15 keys,
 * for any index size. Our choice.
 */
const BATCH_KEYS = 1 << 20;
const DIGITS = 1 << 16;

/** A content of a marked index. Valid until the next row is read. */
export interface MarkedRow {
  /** First byte of the key: 0 for file data. */
  readonly prefix: number;
  readonly deleted: boolean;
  readonly originalLength: number;
  readonly isMarked: boolean;
  /** Decoded on access. */
  readonly entry: IndexEntry;
}

/**
 * Marks on the contents of an index at one moment, one bit a row and kind of mark. Marks are
 * collected and then looked up in index order. Marks on contents that the index lacks are dropped.
 * The bodies stay open until {@link close}, even if the index changes.
 */
export class IndexMarks {
  readonly #bodies: readonly IndexBody[];
  readonly #watermarkSeconds: number;
  readonly #marked: ReadonlyMap<IndexBody, Bits>;
  readonly #entered: ReadonlyMap<IndexBody, Bits>;
  readonly #keyBytes: number;
  readonly #batchKeys: number;
  #keys: Buffer;
  #count = 0;
  #isOpen = true;

  /** `keyBytes` is the repository's key length. Tests lower `batchKeys`. Throws `BAD_INDEX`. */
  constructor(
    bodies: readonly IndexBody[],
    watermarkSeconds: number,
    keyBytes: number,
    batchKeys = BATCH_KEYS,
  ) {
    // Contents with keys of another length could not be marked, and would be collected.
    if (bodies.some((body) => body.count > 0 && body.keyBytes !== keyBytes))
      throw badIndex(`keys that are not ${keyBytes} bytes long`);
    // Unsorted keys could not be found and marked either.
    if (!bodies.every((body) => body.isSorted())) throw badIndex('keys that are out of order');
    this.#bodies = bodies.map((body) => body.share());
    this.#watermarkSeconds = watermarkSeconds;
    this.#marked = new Map(bodies.map((body) => [body, new Bits(body.count)]));
    this.#entered = new Map(bodies.map((body) => [body, new Bits(body.count)]));
    this.#keyBytes = keyBytes;
    const rows = bodies.reduce((sum, { count }) => sum + count, 1);
    this.#batchKeys = Math.min(batchKeys, rows);
    this.#keys = Buffer.alloc(keyBytes * this.#batchKeys);
  }

  mark(id: ContentId): void {
    // No row has a key of this length.
    if (keyBytesOf(id) !== this.#keyBytes) return;
    this.#turnIfFull();
    writeContentKey(id, this.#keys, this.#count++ * this.#keyBytes);
  }

  get keyBytes(): number {
    return this.#keyBytes;
  }

  /** {@link mark} for the key at `at`. */
  markKey(keys: Uint8Array, at: number): void {
    this.#turnIfFull();
    const to = this.#count++ * this.#keyBytes;
    for (let i = 0; i < this.#keyBytes; i++) this.#keys[to + i] = keys[at + i] as number;
  }

  /** Sets the other mark, at once. False if it was set, undefined if the index lacks the key. */
  enterKey(keys: Uint8Array, at: number): boolean | undefined {
    let isNew: boolean | undefined;
    for (const body of this.#bodies) {
      const position = body.find(keys, at, this.#keyBytes);
      if (position < 0) continue;
      const wasSet = !(this.#entered.get(body) as Bits).set(position);
      isNew = (isNew ?? true) && !wasSet;
    }
    return isNew;
  }

  #turnIfFull(): void {
    if (this.#count === this.#batchKeys) this.#turn();
  }

  /** Looks up all collected keys. */
  #turn(): void {
    const order = sortedOrder(this.#keys, this.#count, this.#keyBytes);
    for (let from = 0; from < this.#count;) {
      const prefix = this.#keys[(order[from] as number) * this.#keyBytes];
      let to = from + 1;
      while (to < this.#count && this.#keys[(order[to] as number) * this.#keyBytes] === prefix)
        to++;
      const sorted = { keys: this.#keys, order, from, to, keyBytes: this.#keyBytes };
      for (const body of this.#bodies) {
        const bits = this.#marked.get(body) as Bits;
        body.findSorted(sorted, (position) => void bits.set(position));
      }
      from = to;
    }
    this.#count = 0;
  }

  /** Visible contents in key order, with the marks set before the call. */
  *rows(): Generator<MarkedRow> {
    this.#turn();
    for (const row of mergeRows(this.#bodies.map((body) => body.rows()))) {
      const isMarked = (this.#marked.get(row.body) as Bits).has(row.position);
      if ('copyKey' in row) {
        const { prefix, deleted, originalLength } = row;
        if (deleted && isHidden(row.entry, this.#watermarkSeconds)) continue;
        yield {
          prefix,
          deleted,
          originalLength,
          isMarked,
          get entry() {
            return row.entry;
          },
        };
        continue;
      }
      const { entry } = row;
      if (isHidden(entry, this.#watermarkSeconds)) continue;
      const { deleted, originalLength, contentId } = entry;
      const prefix = contentId.length % 2 === 1 ? contentId.charCodeAt(0) : 0;
      yield { prefix, deleted, originalLength, isMarked, entry };
    }
  }

  /** May be called twice. */
  close(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#keys = Buffer.alloc(0);
    for (const body of this.#bodies) body.close();
  }
}

/** Positions of the keys, sorted by prefix and the next two bytes. */
function sortedOrder(keys: Uint8Array, count: number, keyBytes: number): Uint32Array {
  const byDigit = countingSort(
    count,
    DIGITS,
    (i) => i,
    (i) => ((keys[i * keyBytes + 1] as number) << 8) | (keys[i * keyBytes + 2] as number),
  );
  return countingSort(
    count,
    256,
    (i) => byDigit[i] as number,
    (i) => keys[i * keyBytes] as number,
  );
}

/** Stable sort. */
function countingSort(
  count: number,
  digits: number,
  itemAt: (i: number) => number,
  digitOf: (item: number) => number,
): Uint32Array {
  const starts = new Uint32Array(digits + 1);
  for (let i = 0; i < count; i++) {
    const digit = digitOf(itemAt(i)) + 1;
    starts[digit] = (starts[digit] as number) + 1;
  }
  for (let digit = 1; digit <= digits; digit++)
    starts[digit] = (starts[digit] as number) + (starts[digit - 1] as number);
  const order = new Uint32Array(count);
  for (let i = 0; i < count; i++) {
    const item = itemAt(i);
    const digit = digitOf(item);
    const at = starts[digit] as number;
    order[at] = item;
    starts[digit] = at + 1;
  }
  return order;
}

class Bits {
  readonly #words: Uint32Array;

  constructor(count: number) {
    this.#words = new Uint32Array(Math.ceil(count / 32));
  }

  /** Returns whether the bit was clear before. */
  set(at: number): boolean {
    const word = this.#words[at >>> 5] as number;
    const bit = 1 << (at & 31);
    this.#words[at >>> 5] = word | bit;
    return (word & bit) === 0;
  }

  has(at: number): boolean {
    return (((this.#words[at >>> 5] as number) >>> (at & 31)) & 1) === 1;
  }
}
