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
 * Bodies searched in sequence by a lookup. If there are more, they are merged. Our choice: a binary
 * search in memory takes 0.5 µs.
 */
const BODIES_MAX = 4;
/**
 * Maximum size of a merged body, enough for 80 to 120 million contents. Its offsets have 32 bits,
 * and a merge grows rows by a tenth.
 */
const BODY_BYTES_MAX = 3 * 2 ** 30;
/**
 * Scratch space needed to read an index again, as a multiple of its size: the bodies being merged,
 * and their result. A tenth of each is for concurrent writes.
 */
const SCRATCH_SHARE = 2.2;
/** Unmerged bodies allowed while loading, so that each merge takes many bodies. */
const LOADING_BODIES_MAX = 64;

export interface EntryRange {
  readonly prefix?: string;
  readonly after?: ContentId | undefined;
  /** Include entries that the watermark hides. */
  readonly hidden?: boolean;
}

/** A row that decodes its entry on access. Valid until the next row is read. */
export interface IndexRow extends Pick<IndexEntry, 'packBlobId' | 'packedLength' | 'deleted'> {
  readonly entry: IndexEntry;
}

export interface CommittedIndexOptions {
  /** Called once for each entry that a merge drops. */
  readonly onSuperseded?: OnSuperseded | undefined;
  readonly openScratch?: OpenScratch | undefined;
  /** Maximum size of a merged body. Tests lower it. */
  readonly bodyBytesMax?: number;
}

/** The smallest key greater than the key of `id`. */
const keyBehind = (id: ContentId): Uint8Array => Buffer.concat([contentKey(id), Buffer.of(0)]);

/** The entries of many index bodies, presented as one index. */
export class CommittedIndex {
  readonly #memoryBytesMax: number;
  readonly #bodyBytesMax: number;
  /** This object closes them. */
  #bodies: IndexBody[] = [];
  readonly #watermarkSeconds: number;
  /** Cached until the bodies change. */
  #contentCount: number | undefined;
  readonly #options: CommittedIndexOptions;
  /** Reused buffer for the key of a lookup, to avoid garbage. */
  readonly #key = Buffer.alloc(65);

  /** @param memoryBytes memory for all bodies. A merged body above half of it goes to a file. */
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
   * Adds a body and takes ownership. Bodies in memory are merged when they use up their share, so
   * each is merged about once during a load. Call {@link settle} after the last body.
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

  /** Moves all bodies from `other` to this index. */
  takeOver(other: CommittedIndex): void {
    // Move singly: if a merge fails, each body still has one owner.
    for (let body = other.#bodies.pop(); body; body = other.#bodies.pop()) this.add(body);
  }

  /** Merges small bodies until a lookup searches only a few. Long bodies stay as they are. */
  settle(): void {
    const bodies = this.#bodies.filter(({ lengthBytes }) => lengthBytes <= this.#bodyBytesMax / 2);
    if (bodies.length <= BODIES_MAX) return;
    bodies.sort((a, b) => a.count - b.count);
    // Stop at a body that is larger than all bodies before it together.
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

  /** Merges as many of these bodies as fit into one, but at least two if possible. */
  #merge(wanted: readonly IndexBody[]): void {
    let length = 0;
    const parts = wanted.filter(({ lengthBytes }) => {
      const hasRoom = length + lengthBytes <= this.#bodyBytesMax;
      if (hasRoom) length += lengthBytes;
      return hasRoom;
    });
    const rest = this.#bodies.filter((body) => !parts.includes(body));
    // Few entries are duplicates, so a result too large for memory starts in a file.
    const bytes = parts.reduce((sum, part) => sum + part.lengthBytes, 0);
    const isSmall = bytes < this.#memoryBytesMax / 2;
    const { onSuperseded, openScratch } = this.#options;
    const cursors = parts.map((part) => part.rows());
    const rows = mergeRows(cursors, onSuperseded);
    const merged = buildIndexBody(rows, isSmall ? Infinity : 0, openScratch);
    for (const part of parts) part.close();
    this.#bodies = merged ? [...rest, merged] : rest;
  }

  /** Scratch space needed to read the index again. 0 if it fits into memory. */
  get scratchBytesMax(): number {
    return this.#scratchBytes(SCRATCH_SHARE);
  }

  /**
   * Scratch space needed to read the index again while marks are open. The index may be read
   * several times meanwhile, and the marks keep their old bodies.
   */
  get scratchBytesBesideMarksMax(): number {
    return this.#scratchBytes(1 + SCRATCH_SHARE);
  }

  #scratchBytes(share: number): number {
    const bytes = this.#bodies.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);
    return bytes > this.#memoryBytesMax / 2 ? Math.ceil(bytes * share) : 0;
  }

  /** Rows of all bodies. A content in several bodies counts several times. */
  get rowCount(): number {
    return this.#bodies.reduce((sum, { count }) => sum + count, 0);
  }

  /** Contents of all bodies, including hidden ones. Only format 1 can lower this number. */
  get contentCount(): number {
    if (this.#contentCount === undefined) {
      let count = 0;
      for (const row of mergeRows(this.#bodies.map((body) => body.rows()))) if (row.body) count++;
      this.#contentCount = count;
    }
    return this.#contentCount;
  }

  /** The entry with the highest precedence, including deletions that no watermark hides. */
  find(id: ContentId): IndexEntry | undefined {
    const best = this.findHidden(id);
    return best && !isHidden(best, this.#watermarkSeconds) ? best : undefined;
  }

  /** {@link find}, including entries hidden by the watermark. */
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

  /** Whether all contents exist and none is deleted. `keys` has keys of `keyBytes` each. */
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
      // The content is found. The other bodies matter only if they may mark it as deleted.
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
   * Visible entries in key order, including deleted ones. `prefix` '' means file data, undefined
   * means all. `after` starts behind that ID, to continue an iteration after the index changed.
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

  /** {@link entries} in no defined order. Each field is decoded on access. */
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

  /** Marks on the current contents. The caller closes them. */
  openMarks(keyBytes: number): IndexMarks {
    return new IndexMarks(this.#bodies, this.#watermarkSeconds, keyBytes);
  }

  close(): void {
    for (const body of this.#bodies) body.close();
    this.#bodies = [];
  }
}
