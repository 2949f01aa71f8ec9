import { isCode } from '../../base/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { ContentId } from '../index/content-id.ts';

/**
 * Limits of recorded damage, about 150 bytes an item. Our choice. A pack with more damaged contents
 * counts as entirely damaged. Then its healthy contents are stored again too, at most one pack's
 * size.
 */
export const DAMAGED_PACKS_MAX = 10_000;
export const DAMAGED_CONTENTS_MAX = 20_000;
const CONTENTS_PER_PACK_MAX = 200;

type Where = Pick<IndexEntry, 'packBlobId' | 'contentId'>;

/** Packs that a listing has found. */
export interface ListedPacks {
  readonly has: (packBlobId: string) => boolean;
  /** Entries from this Unix second on may lie in packs newer than the listing. */
  readonly atSeconds: number;
}

/**
 * Contents known to be missing or damaged, by content and pack. If the index later names another
 * pack for a content, the content is healthy. So a stored-again content needs no removal here.
 */
export class DamagedContents {
  /** Damaged contents by pack. An empty set means the whole pack. */
  readonly #packs = new Map<string, Set<ContentId>>();
  #contents = 0;
  #hasMore = false;
  #listed: ListedPacks | undefined;
  #storedAgain = 0;
  #found = 0;

  get isEmpty(): boolean {
    return this.#packs.size === 0 && !this.#hasMore && !this.#listed;
  }

  /** More damage exists than is recorded here. */
  get hasMore(): boolean {
    return this.#hasMore;
  }

  /** Damaged contents that this process has stored again. */
  get storedAgain(): number {
    return this.#storedAgain;
  }

  /** Number of damaged reads in this process. */
  get found(): number {
    return this.#found;
  }

  has(entry: Where & Partial<Pick<IndexEntry, 'timestampSeconds'>>): boolean {
    if (this.isEmpty) return false;
    const contents = this.#packs.get(entry.packBlobId);
    if (contents) return contents.size === 0 || contents.has(entry.contentId);
    if (!this.#listed || entry.timestampSeconds === undefined) return false;
    return entry.timestampSeconds < this.#listed.atSeconds && !this.#listed.has(entry.packBlobId);
  }

  add({ packBlobId, contentId }: Where): void {
    const contents = this.#packs.get(packBlobId);
    if (contents?.size === 0 || contents?.has(contentId)) return;
    if (!contents && this.#packs.size >= DAMAGED_PACKS_MAX) {
      this.#hasMore = true;
      return;
    }
    if (contents && contents.size >= CONTENTS_PER_PACK_MAX) {
      this.addPack(packBlobId);
      return;
    }
    if (this.#contents >= DAMAGED_CONTENTS_MAX) this.#forgetLargest();
    if (contents) contents.add(contentId);
    else this.#packs.set(packBlobId, new Set([contentId]));
    this.#contents++;
  }

  /** Marks all contents of a pack as damaged. */
  addPack(packBlobId: string): void {
    const contents = this.#packs.get(packBlobId);
    if (!contents && this.#packs.size >= DAMAGED_PACKS_MAX) {
      this.#hasMore = true;
      return;
    }
    this.#contents -= contents?.size ?? 0;
    this.#packs.set(packBlobId, new Set());
  }

  #forgetLargest(): void {
    let largest: [string, number] = ['', 0];
    for (const [pack, { size }] of this.#packs) if (size > largest[1]) largest = [pack, size];
    this.addPack(largest[0]);
  }

  addMore(): void {
    this.#hasMore = true;
  }

  addAll(other: DamagedContents): void {
    for (const [packBlobId, contentIds] of other.packs()) {
      if (contentIds.length === 0) this.addPack(packBlobId);
      for (const contentId of contentIds) this.add({ packBlobId, contentId });
    }
    if (other.#hasMore) this.#hasMore = true;
  }

  /** For more damage than fits: contents of packs that are not listed then count as damaged. */
  setListed(listed: ListedPacks): void {
    this.#listed = listed;
  }

  /** Records a read that failed permanently (`DAMAGED_BLOB`). Other errors do not prove damage. */
  note(error: unknown): void {
    if (!isCode(error, 'DAMAGED_BLOB')) return;
    const { blobId, contentId } = error.facts;
    if (typeof blobId !== 'string' || typeof contentId !== 'string') return;
    this.#found++;
    if (isCode(error.cause, 'BLOB_NOT_FOUND')) this.addPack(blobId);
    else this.add({ packBlobId: blobId, contentId: contentId as ContentId });
  }

  noteStoredAgain(): void {
    this.#storedAgain++;
  }

  /** Resets the counters after they were recorded, for the next backup of this process. */
  startCounting(): void {
    this.#storedAgain = 0;
    this.#found = 0;
  }

  /** Each pack with its damaged contents. An empty list means the whole pack. */
  *packs(): Generator<[string, ContentId[]]> {
    for (const [pack, contents] of this.#packs) yield [pack, [...contents]];
  }

  get packCount(): number {
    return this.#packs.size;
  }
}
