import { isCode } from '../../base/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { ContentId } from '../index/content-id.ts';

/**
 * Damage that is told apart, some 150 bytes each. A pack with more damaged contents counts as
 * damaged as a whole: then what is sound in it is stored again too, which is a pack's size at most.
 * Our choice.
 */
export const DAMAGED_PACKS_MAX = 10_000;
export const DAMAGED_CONTENTS_MAX = 20_000;
const CONTENTS_PER_PACK_MAX = 200;

type Where = Pick<IndexEntry, 'packBlobId' | 'contentId'>;

/** Packs whose presence is known, as a listing told it. */
export interface ListedPacks {
  readonly has: (packBlobId: string) => boolean;
  /** Entries from this second on may lie in packs that came after the listing. */
  readonly atSeconds: number;
}

/**
 * What is known to be missing or damaged in the packs of a repository. A content counts as damaged
 * at one place: once the index names another pack for it, it is whole. So nothing here has to be
 * taken back when a content is stored again.
 */
export class DamagedContents {
  /** An empty set: the whole pack. */
  readonly #packs = new Map<string, Set<ContentId>>();
  #contents = 0;
  #hasMore = false;
  #listed: ListedPacks | undefined;
  #storedAgain = 0;
  #found = 0;

  get isEmpty(): boolean {
    return this.#packs.size === 0 && !this.#hasMore && !this.#listed;
  }

  /** There is damage beyond what is held. */
  get hasMore(): boolean {
    return this.#hasMore;
  }

  /** Contents that were damaged and have been stored again by this process. */
  get storedAgain(): number {
    return this.#storedAgain;
  }

  /** What this process has come across itself. */
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

  /** All that lies in a pack is damaged. */
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

  /**
   * With more damage than is held, what lies in packs that are not listed counts as damaged too.
   */
  setListed(listed: ListedPacks): void {
    this.#listed = listed;
  }

  /**
   * Takes note of a read that failed for good: `DAMAGED_BLOB`. Other errors tell nothing about a
   * content.
   */
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

  /**
   * What was stored again and found so far is recorded: the next backup of this process counts
   * anew.
   */
  startCounting(): void {
    this.#storedAgain = 0;
    this.#found = 0;
  }

  /** Each pack with its damaged contents; none of them: all. */
  *packs(): Generator<[string, ContentId[]]> {
    for (const [pack, contents] of this.#packs) yield [pack, [...contents]];
  }

  get packCount(): number {
    return this.#packs.size;
  }
}
