import {
  asBuffer,
  type Clock,
  CodedError,
  formatGoTime,
  HOUR_NS,
  isCode,
  lookup,
  mapLimited,
  type Nanoseconds,
  type RandomBytes,
  randomHex,
  SECOND_NS,
  unixSeconds,
} from '../../base/index.ts';
import { compressorByName } from '../../codec/index.ts';
import type { ContentId } from '../index/content-id.ts';
import type { ContentManager } from '../content/content-manager.ts';
import type { IndexEntry } from '../index/entry.ts';
import {
  decodeDeletions,
  decodeManifests,
  encodeManifests,
  keepLatest,
  type StoredEntry,
} from './manifest-content.ts';

export type ManifestId = string & { readonly brand: 'ManifestId' };
export type Labels = Readonly<Record<string, string>>;

/** A small labelled JSON document. `data` is parsed, with integers beyond 2^53 as bigint. */
export interface Manifest {
  readonly id: ManifestId;
  readonly labels: Labels;
  readonly modifiedNs: Nanoseconds;
  readonly data: unknown;
}

const READS_MAX = 8;
/** Kopia merges manifest contents when it finds this many (repo/manifest/manifest_manager.go). */
const COMPACT_AT = 16;
/** Longer contents are parts of a merge and do not count for {@link COMPACT_AT}. Our choice. */
const SHORT_BYTES_MAX = 2 << 20;
/** Maximum consecutive merges, when each missed a deletion. Our choice. */
const MERGES_MAX = 3;
/**
 * A merge keeps deletions younger than this. A concurrent merge that missed the deletion would
 * bring the manifest back. Kopia keeps no deletions, so its merge can drop a deletion that our
 * merge has not seen. In that case {@link ManifestManager.confirmMerge} and
 * {@link ManifestManager.restoreDeletions} recover it from the merged content. Our choice.
 */
export const DELETIONS_KEPT_NS = 7n * 24n * HOUR_NS;
const LABEL_TYPE = 'type';

/** The manifests of one index state. */
interface Reading {
  readonly entries: Map<string, StoredEntry>;
  /** The contents that hold the entries. */
  readonly ids: readonly ContentId[];
  /** `ids`, plus all contents marked as deleted. */
  readonly seen: ReadonlySet<ContentId>;
  /** `DAMAGED_BLOB` for each unreadable content. */
  readonly unreadable: readonly CodedError[];
}

/** Finds manifests by labels. Reads all at once, and writes with the next flush. */
export class ManifestManager {
  readonly #contents: ContentManager;
  readonly #clock: Clock;
  readonly #random: RandomBytes;
  #committed: Map<string, StoredEntry> | undefined;
  #committedContents: ContentId[] = [];
  #unreadable: readonly CodedError[] = [];
  #needsAll = false;
  readonly #pending = new Map<string, StoredEntry>();
  #isCompacting = false;
  /** The inputs of the last merge, until {@link confirmMerge} has checked for missed deletions. */
  #merged: Pick<Reading, 'entries' | 'seen'> | undefined;

  constructor(contents: ContentManager, clock: Clock, random: RandomBytes) {
    this.#contents = contents;
    this.#clock = clock;
    this.#random = random;
  }

  /** `DAMAGED_BLOB` for each unreadable content. {@link find} may lack its manifests. */
  async loadUnreadable(): Promise<readonly CodedError[]> {
    await this.#load();
    return this.#unreadable;
  }

  /** {@link loadUnreadable} at the last read. Empty before the first read. */
  get unreadable(): readonly CodedError[] {
    return this.#unreadable;
  }

  /** Whether all manifests in the index are readable. Check this before you delete anything. */
  async areComplete(): Promise<boolean> {
    await this.#load();
    return this.#unreadable.length === 0 && this.#contents.unreadableIndexes.length === 0;
  }

  /** Write time of the newest unreadable part. Undefined if nothing is missing. */
  async lastUnreadableNs(): Promise<Nanoseconds | undefined> {
    if (await this.areComplete()) return undefined;
    const seconds = [...this.#unreadable, ...this.#contents.unreadableIndexes].map(({ facts }) =>
      typeof facts.writtenSeconds === 'number' ? facts.writtenSeconds : Infinity,
    );
    const last = Math.max(...seconds);
    return Number.isFinite(last) ? BigInt(last + 1) * SECOND_NS : this.#clock.nowNs();
  }

  /** If `needsAll`, unreadable manifests fail this and later calls with `DAMAGED_BLOB`. */
  async requireAll(needsAll: boolean): Promise<void> {
    this.#needsAll = needsAll;
    if (!needsAll) return;
    await this.#load();
    const [first] = this.#unreadable;
    if (first) throw first;
  }

  /** All readable manifests with these labels, oldest first. */
  async find(labels: Labels): Promise<Manifest[]> {
    const entries = new Map(await this.#load());
    for (const [id, entry] of this.#pending) entries.set(id, entry);
    const wanted = Object.entries(labels);
    return [...entries.values()]
      .filter((entry) => !entry.deleted)
      .filter((entry) => wanted.every(([key, value]) => lookup(entry.labels, key) === value))
      .sort(compareAge)
      .map(toManifest);
  }

  /** Throws `MANIFEST_NOT_FOUND`. */
  async get(id: string): Promise<Manifest> {
    const entry = this.#pending.get(id) ?? (await this.#load()).get(id);
    if (entry && !entry.deleted) return toManifest(entry);
    throw new CodedError('MANIFEST_NOT_FOUND', `there is no manifest ${id}`);
  }

  /** Adds a manifest, durable after `writePending` and a flush. `data` is encoded like in Go. */
  put(labels: Labels, data: unknown): ManifestId {
    if (!labels[LABEL_TYPE]) throw new TypeError('a manifest needs the label "type"');
    const id = randomHex(16, this.#random);
    this.#add({ id, labels: { ...labels }, deleted: false, data });
    return id as ManifestId;
  }

  /** Replaces a manifest's data, durable like {@link put}. Clients use the latest version. */
  replace(id: ManifestId, labels: Labels, data: unknown): void {
    this.#add({ id, labels: { ...labels }, deleted: false, data });
  }

  delete(id: ManifestId): void {
    this.#add({ id, labels: null, deleted: true, data: null });
  }

  #add(entry: Omit<StoredEntry, 'modified' | 'modifiedNs'>): void {
    // Make it later than the replaced entry, even if the clock was set back, because the latest
    // wins.
    const now = this.#clock.nowNs();
    const modifiedNs = [this.#pending, this.#committed].reduce((latest, entries) => {
      const before = entries?.get(entry.id);
      return before && before.modifiedNs >= latest ? before.modifiedNs + 1n : latest;
    }, now);
    this.#pending.set(entry.id, { ...entry, modified: formatGoTime(modifiedNs), modifiedNs });
  }

  /** Writes all pending entries into contents. The caller flushes afterwards. */
  async writePending(): Promise<void> {
    if (this.#pending.size === 0) return;
    const committed = await this.#load();
    for (const entry of this.#pending.values()) {
      // The replaced entry may not have been in memory when the time was set.
      const before = committed.get(entry.id);
      if (before && before.modifiedNs >= entry.modifiedNs) this.#add(entry);
    }
    const entries = [...this.#pending.values()];
    await this.#write(entries);
    for (const entry of entries) {
      keepLatest(committed, entry);
      // An entry that changed meanwhile stays pending.
      if (this.#pending.get(entry.id) === entry) this.#pending.delete(entry.id);
    }
  }

  /** Drops the cached manifests, so that the next call reads the writes of others. */
  invalidate(): void {
    this.#committed = undefined;
  }

  /**
   * Merges many manifest contents into one. Returns whether it merged: then flush the contents and
   * call {@link confirmMerge}. Safe next to other writers. An old content is marked as deleted only
   * if the new one holds its manifests, and the new one becomes durable first.
   */
  async compact(): Promise<boolean> {
    // Only one merge at a time, until it is confirmed.
    if (this.#isCompacting || this.#merged) return false;
    if (!this.#areMany(this.#committedContents)) return false;
    this.#isCompacting = true;
    try {
      // The index may be days old in a long run.
      await this.#contents.refreshIfOld();
      const reading = await this.#readAll();
      // A merge without unreadable deletions could bring back deleted manifests.
      const isWhole =
        reading.unreadable.length === 0 && this.#contents.unreadableIndexes.length === 0;
      if (!isWhole || !this.#areMany(reading.ids)) return false;
      await this.#merge(reading);
      return true;
    } finally {
      this.#isCompacting = false;
    }
  }

  #areMany(ids: readonly ContentId[]): boolean {
    const originalLength = (id: ContentId): number => this.#contents.find(id)?.originalLength ?? 0;
    return ids.filter((id) => originalLength(id) <= SHORT_BYTES_MAX).length >= COMPACT_AT;
  }

  async #merge({ entries, ids, seen }: Reading): Promise<void> {
    const oldestNs = this.#clock.nowNs() - DELETIONS_KEPT_NS;
    const kept = [...entries.values()].filter(
      (entry) => !entry.deleted || entry.modifiedNs > oldestNs,
    );
    const written = await this.#write(kept);
    const merged = new Set(ids).difference(written);
    for (const id of merged) {
      // A concurrent merge may have deleted it already.
      if (this.#contents.find(id)?.deleted === false) this.#contents.setDeleted(id, true);
    }
    this.#committedContents = this.#committedContents.filter((id) => !merged.has(id));
    if (this.#committed) for (const entry of entries.values()) keepLatest(this.#committed, entry);
    this.#merged = { entries, seen: seen.union(written) };
  }

  /**
   * Call this once a merge is durable. A manifest of the merge may have been deleted by another
   * client, and a Kopia client that missed the merge may have dropped that deletion. The manifest
   * would be back. Reads contents that the merge has not seen, deleted or not, and merges again
   * with their deletions. Merges keep these deletions for {@link DELETIONS_KEPT_NS}.
   */
  async confirmMerge(): Promise<void> {
    try {
      for (let merges = 0; this.#merged && merges < MERGES_MAX; merges++) {
        const { entries, seen } = this.#merged;
        await this.#contents.refresh();
        const unseen = this.#indexed().filter(({ contentId }) => !seen.has(contentId));
        const missed = await this.#deletionsIn(unseen, entries);
        if (missed.length === 0) return;
        await this.#mergeWith(missed);
      }
    } finally {
      this.#merged = undefined;
    }
  }

  /**
   * Deletes manifests that came back, and returns how many. Their deletion still exists in a
   * content merged in the last days. Cause: two concurrent merges. The first missed the deletion,
   * and the second dropped it.
   */
  async restoreDeletions(): Promise<number> {
    const { entries } = await this.#readAll();
    const oldest = unixSeconds(this.#clock.nowNs() - DELETIONS_KEPT_NS);
    const merged = this.#indexed().filter(
      ({ deleted, timestampSeconds }) => deleted && timestampSeconds > oldest,
    );
    const missed = await this.#deletionsIn(merged, entries);
    await this.#mergeWith(missed);
    await this.confirmMerge();
    return missed.length;
  }

  /** Deletions in these contents that are newer than undeleted manifests in `entries`. */
  async #deletionsIn(
    contents: readonly IndexEntry[],
    entries: ReadonlyMap<string, StoredEntry>,
  ): Promise<StoredEntry[]> {
    const missed = new Map<string, StoredEntry>();
    await mapLimited(contents, READS_MAX, async ({ contentId }) => {
      for (const entry of await this.#deletionsIfThere(contentId)) {
        const present = entries.get(entry.id);
        if (!present || present.deleted) continue;
        if (entry.modifiedNs > present.modifiedNs) keepLatest(missed, entry);
      }
    });
    return [...missed.values()];
  }

  async #mergeWith(deletions: readonly StoredEntry[]): Promise<void> {
    if (deletions.length === 0) return;
    const reading = await this.#readAll();
    for (const entry of deletions) keepLatest(reading.entries, entry);
    await this.#merge(reading);
    await this.#contents.flush();
  }

  /** Old contents may be missing or damaged. This loses nothing. */
  async #deletionsIfThere(id: ContentId): Promise<StoredEntry[]> {
    try {
      return await this.#loadContent(id, decodeDeletions);
    } catch (error) {
      if (isCode(error, 'DAMAGED_BLOB', 'CONTENT_NOT_FOUND')) return [];
      throw error;
    }
  }

  #indexed(): IndexEntry[] {
    return Array.from(this.#contents.entries({ prefix: 'm' }));
  }

  async #write(entries: readonly StoredEntry[]): Promise<Set<ContentId>> {
    const compressor = compressorByName('zstd-fastest');
    const written = new Set<ContentId>();
    for (const data of encodeManifests(entries)) {
      written.add((await this.#contents.write(data, { prefix: 'm', compressor })).contentId);
    }
    this.#committedContents.push(...written);
    return written;
  }

  async #load(): Promise<Map<string, StoredEntry>> {
    this.#committed ??= await this.#loadAll();
    return this.#committed;
  }

  async #loadAll(): Promise<Map<string, StoredEntry>> {
    const { entries, ids, unreadable } = await this.#readAll();
    this.#committedContents = [...ids];
    this.#unreadable = unreadable;
    return entries;
  }

  /** A content may disappear in another client's merge: read the index again, once. */
  async #readAll(): Promise<Reading> {
    let reading = await this.#readOnce();
    if (reading.unreadable.length > 0) {
      await this.#contents.refresh();
      reading = await this.#readOnce();
    }
    const [first] = reading.unreadable;
    if (first && this.#needsAll) throw first;
    return reading;
  }

  async #readOnce(): Promise<Reading> {
    const indexed = this.#indexed();
    const seen = new Set(indexed.map(({ contentId }) => contentId));
    const ids = indexed.filter(({ deleted }) => !deleted).map(({ contentId }) => contentId);
    const entries = new Map<string, StoredEntry>();
    const unreadable: CodedError[] = [];
    await mapLimited(ids, READS_MAX, async (id) => {
      try {
        for (const entry of await this.#loadContent(id)) keepLatest(entries, entry);
      } catch (error) {
        if (!isCode(error, 'DAMAGED_BLOB', 'CONTENT_NOT_FOUND')) throw error;
        unreadable.push(withTime(error, this.#contents.find(id)));
      }
    });
    return { entries, ids, seen, unreadable };
  }

  async #loadContent(id: ContentId, decode = decodeManifests): Promise<StoredEntry[]> {
    const bytes = await this.#contents.getContent(id).catch((error: unknown) => {
      throw withRemedy(error);
    });
    try {
      return decode(asBuffer(bytes));
    } catch (cause) {
      const { packBlobId } = this.#contents.findOrThrow(id);
      const text = `blob ${packBlobId} is damaged: content ${id} is not a list of manifests`;
      throw new CodedError('DAMAGED_BLOB', text, { cause, facts: { blobId: packBlobId } });
    }
  }
}

/** A later backup cannot replace manifests, so the error says how to recover. */
function withRemedy(error: unknown): unknown {
  if (!isCode(error, 'DAMAGED_BLOB')) return error;
  const text = `${error.message}; it holds a part of the list of snapshots and policies. Restore an earlier version or a copy of this blob in the storage, or run "longshore repository repair"`;
  const { code, cause, facts } = error;
  return new CodedError(code, text, { cause, facts });
}

/** Adds the second of the content's write. Newer manifests cannot be in it. */
function withTime(error: CodedError, entry: IndexEntry | undefined): CodedError {
  if (!entry) return error;
  const { code, message, cause } = error;
  const { contentId, packBlobId: blobId, timestampSeconds: writtenSeconds } = entry;
  const facts = { blobId, ...error.facts, contentId, writtenSeconds };
  return new CodedError(code, message, { cause, facts });
}

function compareAge(a: StoredEntry, b: StoredEntry): number {
  if (a.modifiedNs !== b.modifiedNs) return a.modifiedNs < b.modifiedNs ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

function toManifest({ id, labels, modifiedNs, data }: StoredEntry): Manifest {
  return { id: id as ManifestId, labels: labels ?? {}, modifiedNs, data };
}

/** The newest of several matches, which counts. */
export const latestManifest = (manifests: readonly Manifest[]): Manifest | undefined =>
  manifests.at(-1);
