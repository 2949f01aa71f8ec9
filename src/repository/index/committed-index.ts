import {
  type ContentId,
  contentIdOfKey,
  contentKey,
  keyBytesOf,
  writeContentKey,
} from './content-id.ts';
import { comparePrecedence, type IndexEntry, isHidden } from './entry.ts';
import type { IndexBody } from './index-body.ts';
import { IndexMarks } from './index-marks.ts';
import { buildIndexBody, mergeEntries, mergeRows, type OnSuperseded } from './merge.ts';
import type { OpenScratch } from './scratch-file.ts';

/**
 * Bodies that a look-up searches one after the other; more are merged. Our choice: bisection in
 * memory takes 0.5 us.
 */
const BODIES_MAX = 4;
/**
 * The longest body that is made of others: offsets in it have 32 bits, and rows grow by a tenth
 * when they are merged. 80 to 120 million contents would be more.
 */
const BODY_BYTES_MAX = 3 * 2 ** 30;
/**
 * Of the length of an index, what reading it anew may take of the scratch directory: bodies that
 * are being merged, and what is made of them. A tenth is for what is written meanwhile.
 */
const SCRATCH_SHARE = 2.2;
/** Bodies that loading may hold before it merges: each merge then takes many at a time. */
const LOADING_BODIES_MAX = 64;

export interface EntryRange {
  readonly prefix?: string;
  readonly after?: ContentId | undefined;
  /** Include entries that the watermark hides. */
  readonly hidden?: boolean;
}

/** An entry that is decoded where it is asked for; valid until the next one is taken. */
export interface IndexRow extends Pick<IndexEntry, 'packBlobId' | 'packedLength' | 'deleted'> {
  readonly entry: IndexEntry;
}

export interface CommittedIndexOptions {
  /** Told of each entry that a merge drops, once. */
  readonly onSuperseded?: OnSuperseded | undefined;
  readonly openScratch?: OpenScratch | undefined;
  /** Bodies are merged up to this; tests lower it. */
  readonly bodyBytesMax?: number;
}

/** The smallest key greater than the id's. */
const keyBehind = (id: ContentId): Uint8Array => Buffer.concat([contentKey(id), Buffer.of(0)]);

/** Everything the index blobs say: many bodies seen as one. */
export class CommittedIndex {
  readonly #memoryBytesMax: number;
  readonly #bodyBytesMax: number;
  /** Owned here. */
  #bodies: IndexBody[] = [];
  readonly #watermarkSeconds: number;
  /** Until the bodies change. */
  #contentCount: number | undefined;
  readonly #options: CommittedIndexOptions;
  /** The key being looked for: made anew for each it would be garbage. */
  readonly #key = Buffer.alloc(65);

  /**
   * @param memoryBytes what the bodies may take together; a merged one above half of it goes to a
   * scratch file
   */
  constructor(memoryBytes: number, watermarkSeconds: number, options: CommittedIndexOptions = {}) {
    this.#options = options;
    this.#bodyBytesMax = options.bodyBytesMax ?? BODY_BYTES_MAX;
    this.#memoryBytesMax = memoryBytes;
    this.#watermarkSeconds = watermarkSeconds;
  }

  get watermarkSeconds(): number {
    return this.#watermarkSeconds;
  }

  /**
   * Takes over one body. Those in memory are merged when they fill their share, so that an index of
   * any size is merged about once while it loads; {@link settle} when the last has come.
   */
  add(body: IndexBody): void {
    this.#bodies.push(body);
    this.#contentCount = undefined;
    const held = this.#bodies.reduce((sum, { memoryBytes }) => sum + memoryBytes, 0);
    if (held > this.#memoryBytesMax) {
      this.#merge(this.#bodies.filter(({ memoryBytes }) => memoryBytes > 0));
    }
    if (this.#bodies.length > LOADING_BODIES_MAX) this.settle();
  }

  /** Takes over all bodies of another one, which holds nothing then. */
  takeOver(other: CommittedIndex): void {
    // One by one: when a merge fails, each is owned by one of the two.
    for (let body = other.#bodies.pop(); body; body = other.#bodies.pop()) this.add(body);
  }

  /**
   * Merges small bodies until a look-up has few to search. Those that are long enough stay as they
   * are.
   */
  settle(): void {
    const bodies = this.#bodies.filter(({ lengthBytes }) => lengthBytes <= this.#bodyBytesMax / 2);
    if (bodies.length <= BODIES_MAX) return;
    bodies.sort((a, b) => a.count - b.count);
    // Up to where the next is larger than all before together.
    let count = 2;
    let total = (bodies[0] as IndexBody).count + (bodies[1] as IndexBody).count;
    while (
      count < bodies.length &&
      (bodies.length - count >= BODIES_MAX || (bodies[count] as IndexBody).count <= 2 * total)
    ) {
      total += (bodies[count] as IndexBody).count;
      count++;
    }
    this.#merge(bodies.slice(0, count));
  }

  /** Merges as many of these as one body has room for; at least two, where there are two. */
  #merge(wanted: readonly IndexBody[]): void {
    let length = 0;
    const parts = wanted.filter(({ lengthBytes }) => {
      const hasRoom = length + lengthBytes <= this.#bodyBytesMax;
      if (hasRoom) length += lengthBytes;
      return hasRoom;
    });
    const rest = this.#bodies.filter((body) => !parts.includes(body));
    // Twins among them are few: what will not fit is not begun in memory.
    const bytes = parts.reduce((sum, part) => sum + part.lengthBytes, 0);
    const isSmall = bytes < this.#memoryBytesMax / 2;
    const { onSuperseded, openScratch } = this.#options;
    const cursors = parts.map((part) => part.rows());
    const rows = mergeRows(cursors, onSuperseded);
    const merged = buildIndexBody(rows, isSmall ? Infinity : 0, openScratch);
    for (const part of parts) part.close();
    this.#bodies = merged ? [...rest, merged] : rest;
  }

  /**
   * What the scratch directory must have room for when the index is read anew; 0 where it fits into
   * memory.
   */
  get scratchBytesMax(): number {
    return this.#scratchBytes(SCRATCH_SHARE);
  }

  /**
   * The same for whoever holds marks, for it is read anew more than once meanwhile: the bodies of
   * the marks stay, beside those that are searched and those that are being made.
   */
  get scratchBytesBesideMarksMax(): number {
    return this.#scratchBytes(1 + SCRATCH_SHARE);
  }

  #scratchBytes(share: number): number {
    const bytes = this.#bodies.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);
    return bytes > this.#memoryBytesMax / 2 ? Math.ceil(bytes * share) : 0;
  }

  /** Rows of all bodies; a content that several bodies name counts as often. */
  get rowCount(): number {
    return this.#bodies.reduce((sum, { count }) => sum + count, 0);
  }

  /** Contents of all bodies, hidden ones included. It only grows, but where format 1 drops some. */
  get contentCount(): number {
    if (this.#contentCount === undefined) {
      let count = 0;
      for (const row of mergeRows(this.#bodies.map((body) => body.rows()))) if (row.body) count++;
      this.#contentCount = count;
    }
    return this.#contentCount;
  }

  /** The entry that takes precedence, deleted ones included unless the watermark hides them. */
  find(id: ContentId): IndexEntry | undefined {
    const best = this.findHidden(id);
    return best && !isHidden(best, this.#watermarkSeconds) ? best : undefined;
  }

  /** {@link find}, also what the watermark hides. */
  findHidden(id: ContentId): IndexEntry | undefined {
    const keyBytes = keyBytesOf(id);
    writeContentKey(id, this.#key, 0);
    let best: IndexEntry | undefined;
    for (const body of this.#bodies) {
      const position = body.find(this.#key, 0, keyBytes);
      if (position < 0) continue;
      const entry = body.entryAt(position);
      if (!best || comparePrecedence(entry, best) > 0) best = entry;
    }
    return best;
  }

  /**
   * Whether all contents are there and not deleted; `keys` one after the other, each `keyBytes`
   * long.
   */
  hasAll(keys: Uint8Array, keyBytes: number): boolean {
    for (let at = 0; at < keys.length; at += keyBytes) {
      if (!this.#has(keys, at, keyBytes)) return false;
    }
    return true;
  }

  #has(keys: Uint8Array, at: number, keyBytes: number): boolean {
    const prefix = keys[at] as number;
    let isFound = false;
    for (const body of this.#bodies) {
      // Another body can only say once more that the content is there, or that it is deleted.
      if (isFound && !body.mayDelete(prefix)) continue;
      const position = body.find(keys, at, keyBytes);
      if (position < 0) continue;
      if (body.isDeletedAt(position)) {
        const winner = this.find(contentIdOfKey(keys.subarray(at, at + keyBytes)));
        return winner !== undefined && !winner.deleted;
      }
      isFound = true;
    }
    return isFound;
  }

  /**
   * Visible entries in key order, deleted ones included; `prefix` '' is file data, undefined is
   * all. With `after`, those behind that id: to go on where an iteration stopped before the index
   * changed.
   */
  *entries(
    { prefix, after, hidden = false }: EntryRange = {},
    onSuperseded?: OnSuperseded,
  ): Generator<IndexEntry> {
    const merged = mergeEntries(
      this.#bodies.map((body) => {
        const first = prefix === undefined ? 0 : prefix === '' ? 0 : prefix.charCodeAt(0);
        const end = prefix === undefined ? 256 : first + 1;
        const from = after === undefined ? Uint8Array.of(first) : keyBehind(after);
        return body.rows(
          body.lowerBound(from),
          end > 255 ? body.count : body.lowerBound(Uint8Array.of(end)),
        );
      }),
      onSuperseded,
    );
    for (const entry of merged) if (hidden || !isHidden(entry, this.#watermarkSeconds)) yield entry;
  }

  /**
   * What {@link entries} yields, in no order that counts, with only as much of each decoded as is
   * asked for.
   */
  *rows(): Generator<IndexRow> {
    for (const row of mergeRows(this.#bodies.map((body) => body.rows()))) {
      if ('copyKey' in row) {
        if (row.deleted && isHidden(row.entry, this.#watermarkSeconds)) continue;
        yield row;
        continue;
      }
      const { entry } = row;
      if (!isHidden(entry, this.#watermarkSeconds)) yield { ...entry, entry };
    }
  }

  /** Marks on what is here now. The caller closes them. */
  openMarks(keyBytes: number): IndexMarks {
    return new IndexMarks(this.#bodies, this.#watermarkSeconds, keyBytes);
  }

  close(): void {
    for (const body of this.#bodies) body.close();
    this.#bodies = [];
  }
}
