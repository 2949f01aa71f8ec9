import { type ContentId, keyBytesOf, writeContentKey } from './content-id.ts';
import { type IndexEntry, isHidden } from './entry.ts';
import type { IndexBody } from './index-body.ts';
import { badIndex } from './index-layout.ts';
import { mergeRows } from './merge.ts';

/**
 * Keys that are looked up together: 17 MB of them, some 15 for each read of an index of any size.
 * Our choice.
 */
const BATCH_KEYS = 1 << 20;
const DIGITS = 1 << 16;

/** One content of a marked index; valid until the next one is taken. */
export interface MarkedRow {
  /** First byte of the key: 0 for file data. */
  readonly prefix: number;
  readonly deleted: boolean;
  readonly originalLength: number;
  readonly isMarked: boolean;
  /** Decoded when it is asked for. */
  readonly entry: IndexEntry;
}

/**
 * Marks on the contents of an index as it was at one moment: two bits for each row, by its
 * position. What is marked waits until many can be looked up in the order of the index. Nothing is
 * kept of a content that the index does not name. The bodies stay open until {@link close},
 * whatever becomes of the index meanwhile.
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

  /**
   * `keyBytes`: the length of all keys of the repository; `batchKeys`: tests lower it. Throws
   * `BAD_INDEX`.
   */
  constructor(
    bodies: readonly IndexBody[],
    watermarkSeconds: number,
    keyBytes: number,
    batchKeys = BATCH_KEYS,
  ) {
    // What has keys of another length could not be marked, and would be collected.
    if (bodies.some((body) => body.count > 0 && body.keyBytes !== keyBytes))
      throw badIndex(`keys that are not ${keyBytes} bytes long`);
    // Nor could what is not found at its place.
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
    // No row has it then.
    if (keyBytesOf(id) !== this.#keyBytes) return;
    this.#turnIfFull();
    writeContentKey(id, this.#keys, this.#count++ * this.#keyBytes);
  }

  get keyBytes(): number {
    return this.#keyBytes;
  }

  /** {@link mark} of the key at a place. */
  markKey(keys: Uint8Array, at: number): void {
    this.#turnIfFull();
    const to = this.#count++ * this.#keyBytes;
    for (let i = 0; i < this.#keyBytes; i++) this.#keys[to + i] = keys[at + i] as number;
  }

  /**
   * A mark of another kind, which is made at once. False: it was there; undefined: the index does
   * not name the key.
   */
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

  /** Looks up all that waits. */
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

  /** Visible contents in key order, with what was marked before the call. */
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

/** Numbers of the keys by prefix, then by the two bytes behind it. */
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

/** Stable. */
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

  /** Returns whether it was not set. */
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
