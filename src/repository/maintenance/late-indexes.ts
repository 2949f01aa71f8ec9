import { HOUR_NS, isCode, type Nanoseconds, SECOND_NS } from '../../base/index.ts';
import { blobId, type BlobId, type BlobMetadata, type BlobStorage } from '../../blob/index.ts';
import { compactionsOf, type EpochState, loadEpochState } from '../content/epoch-state.ts';
import { type ContentId, prefixOf } from '../index/content-id.ts';
import { loadIndexBlob } from '../content/index-blobs.ts';
import { sessionOfBlob } from '../content/session.ts';
import { comparePrecedence, type IndexEntry, isHidden } from '../index/entry.ts';
import type { IndexBody } from '../index/index-body.ts';
import { DELETIONS_KEPT_NS } from '../manifest/manifest-manager.ts';
import { upgradeTime } from './index-guard.ts';
import type { TaskContext } from './task.ts';

/** Maximum time of a compaction. Blobs put meanwhile are not in it. Our choice. */
const COMPACTION_NS_MAX = HOUR_NS;
/** Maximum clock difference between writers and the storage. */
const CLOCKS_APART_NS = HOUR_NS;
/** Entries not yet in an index, about 300 bytes each. Our choice. */
const ENTRIES_AT_ONCE = 50_000;

/** Index blobs put after the compaction of their epoch, with entries that the index lacks. */
export interface LateIndexes {
  /** Blobs whose entries were written again. They stay until a later run finds them all. */
  readonly adopted: ReadonlySet<BlobId>;
  /** Blobs without useful entries: only missing packs, and deletions of contents in use. */
  readonly spent: ReadonlySet<BlobId>;
}

export const NONE_LATE: LateIndexes = { adopted: new Set(), spent: new Set() };

/**
 * Entries of late blobs to write again. Quick maintenance takes only unknown contents. Then no pack
 * loses its last entry, and a full run may follow at once.
 */
export type AdoptedEntries = 'all' | 'unknown';

/** The plan names the late blobs. Their useful entries are found later. Not in dry runs. */
export interface LateAdoption {
  readonly apply: () => Promise<LateIndexes>;
}

/** The decision about an entry of a late blob. */
type Verdict = 'known' | 'adopt' | 'spent' | 'refuse';

/**
 * Finds index blobs put after their epoch was compacted: a put can hang for days, and its writer
 * can die before it deletes the blob. Longshore and Kopia do not read such a blob.
 * Its entries are written again, unchanged, into the current epoch. This hides nothing, because the
 * newest entry of a content wins. With epochs the index never drops entries, so an entry that it
 * lacks was never undone.
 * Skips entries whose pack is missing. Skips deletions of contents in use: backups rely on them,
 * and the next collection decides again. Manifests older than the deletions kept by merges are
 * added as deleted. So are merges of manifests, because Kopia clients keep no deletions.
 */
export async function planLateAdoption(
  context: TaskContext,
  what: AdoptedEntries = 'all',
): Promise<LateAdoption> {
  const { storage } = context.repository;
  const late = findLate(await loadEpochState(storage), await unfinishedSessions(storage));
  return {
    apply: () => (late.length === 0 ? Promise.resolve(NONE_LATE) : adopt(context, what, late)),
  };
}

async function adopt(
  context: TaskContext,
  what: AdoptedEntries,
  late: readonly BlobMetadata[],
): Promise<LateIndexes> {
  const { repository, signal, logger } = context;
  const adoption = new Adoption(context, what, await upgradeTime(repository));
  for (const blob of late) {
    signal.throwIfAborted();
    try {
      await adoption.take(blob);
    } catch (error) {
      // An unreadable blob names nothing. A missing blob was deleted by its writer.
      if (!isCode(error, 'DAMAGED_BLOB', 'BAD_INDEX', 'BLOB_NOT_FOUND')) throw error;
      logger.warn({ blobId: blob.id, error: error.message }, 'a late index blob cannot be read');
    }
  }
  await repository.contents.flush();
  return adoption;
}

/** Sessions with a marker: still running, or killed before their flush returned. */
async function unfinishedSessions(storage: BlobStorage): Promise<Set<string>> {
  const sessions = new Set<string>();
  for await (const { id } of storage.listBlobs('s')) sessions.add(sessionOfBlob(id));
  // Blob names from before 2021 have no session.
  sessions.delete('');
  return sessions;
}

/**
 * Index blobs put after the compaction of their epoch, by the storage's clock. A blob's time may be
 * too old: a file keeps the time of its last write, and its rename may hang. So blobs of unfinished
 * sessions count too. A writer deletes its marker only after its index blobs arrived in time.
 */
function findLate(state: EpochState, unfinished: ReadonlySet<string>): BlobMetadata[] {
  const late: BlobMetadata[] = [];
  for (const [epoch, blobs] of state.written) {
    const times = compactionsOf(state, epoch).map(newestOf);
    if (times.length === 0) continue;
    // Use the oldest. A later range is made from the compaction, so it lacks the same entries.
    const replacedNs = times.reduce((a, b) => (a < b ? a : b));
    for (const blob of blobs) {
      const isYoung = blob.timestampNs > replacedNs - COMPACTION_NS_MAX;
      if (isYoung || unfinished.has(sessionOfBlob(blob.id))) late.push(blob);
    }
  }
  return late;
}

const newestOf = (blobs: readonly BlobMetadata[]): Nanoseconds =>
  blobs.reduce((max, { timestampNs }) => (timestampNs > max ? timestampNs : max), 0n);

/** The same content, deleted one second after it was written. */
const buried = (entry: IndexEntry): IndexEntry => ({
  ...entry,
  deleted: true,
  timestampSeconds: entry.timestampSeconds + 1,
});

/** Whether the body deletes manifest contents, as merges do in their own index blob. */
function deletesManifests(body: IndexBody): boolean {
  const first = 'm'.charCodeAt(0);
  const to = body.lowerBound(Uint8Array.of(first + 1));
  for (let at = body.lowerBound(Uint8Array.of(first)); at < to; at++) {
    if (body.isDeletedAt(at)) return true;
  }
  return false;
}

class Adoption implements LateIndexes {
  readonly adopted = new Set<BlobId>();
  readonly spent = new Set<BlobId>();
  readonly #context: TaskContext;
  readonly #what: AdoptedEntries;
  readonly #upgradedNs: Nanoseconds;
  /** Pack lengths. Undefined for missing packs. */
  readonly #packs = new Map<string, number | undefined>();
  #waiting = 0;
  /** Whether the current body has a merge of manifests. */
  #isMerge = false;

  constructor(context: TaskContext, what: AdoptedEntries, upgradedNs: Nanoseconds) {
    this.#context = context;
    this.#what = what;
    this.#upgradedNs = upgradedNs;
  }

  async take(blob: BlobMetadata): Promise<void> {
    const { storage, codec } = this.#context.repository;
    const body = await loadIndexBlob(storage, codec, blob);
    try {
      await this.#takeAll(blob, body);
    } finally {
      body.close();
    }
  }

  async #takeAll({ id }: BlobMetadata, body: IndexBody): Promise<void> {
    const { repository, signal, logger } = this.#context;
    const counts: Record<Verdict, number> = { known: 0, adopt: 0, spent: 0, refuse: 0 };
    this.#isMerge = deletesManifests(body);
    for (let position = 0; position < body.count; position++) {
      const entry = body.entryAt(position);
      const verdict = this.#judge(entry) ?? (await this.#judgeByPack(entry));
      counts[verdict]++;
      if (verdict !== 'adopt') continue;
      signal.throwIfAborted();
      repository.contents.session.addEntry(this.#isForgotten(entry) ? buried(entry) : entry);
      if (++this.#waiting % ENTRIES_AT_ONCE === 0) await repository.contents.flush();
    }
    const { adopt, spent, refuse } = counts;
    if (adopt > 0) this.adopted.add(id);
    else if (spent > 0 && refuse === 0) this.spent.add(id);
    if (adopt === 0) return;
    const text = 'an index blob appeared after its epoch was compacted; writing its entries again';
    logger.warn({ blobId: id, entries: adopt, left: spent + refuse }, text);
  }

  /**
   * Whether this is an old manifest. Merges may since have dropped the deletion of such a manifest.
   * Its writer died before any client learned of it, so it is added as deleted, which explains its
   * pack.
   */
  #isForgotten({ contentId, timestampSeconds }: IndexEntry): boolean {
    if (prefixOf(contentId) !== 'm') return false;
    const known = this.#known(contentId);
    if (known && !known.deleted) return false;
    // The merge's inputs were durable, and the index has all their later changes.
    if (this.#isMerge) return true;
    const ageNs = this.#context.startNs - BigInt(timestampSeconds) * SECOND_NS;
    return ageNs >= DELETIONS_KEPT_NS - CLOCKS_APART_NS;
  }

  /** Entries adopted in this session are newer than the index. */
  #known(id: ContentId): IndexEntry | undefined {
    const { contents } = this.#context.repository;
    return contents.session.find(id) ?? contents.findHidden(id);
  }

  /** Undefined if the pack decides. */
  #judge(entry: IndexEntry): Verdict | undefined {
    const { contents } = this.#context.repository;
    if (isHidden(entry, contents.watermarkSeconds)) return 'known';
    const known = this.#known(entry.contentId);
    if (known && comparePrecedence(known, entry) >= 0) return 'known';
    // A client may rely on the content in use, and this deletion is older than all safety margins.
    if (entry.deleted && known && !known.deleted) return 'spent';
    // Before the upgrade to epochs, the index dropped deleted contents.
    if (BigInt(entry.timestampSeconds) * SECOND_NS <= this.#upgradedNs) return 'refuse';
    const isUnknown = !known && !entry.deleted && !this.#isForgotten(entry);
    return this.#what === 'all' || isUnknown ? undefined : 'refuse';
  }

  async #judgeByPack({ packBlobId, packOffset, packedLength }: IndexEntry): Promise<Verdict> {
    if (!this.#packs.has(packBlobId))
      this.#packs.set(packBlobId, await this.#packLength(packBlobId));
    return (this.#packs.get(packBlobId) ?? 0) >= packOffset + packedLength ? 'adopt' : 'spent';
  }

  /** Look up the pack by name, because a listing may be old. */
  async #packLength(pack: string): Promise<number | undefined> {
    try {
      return (await this.#context.repository.storage.getMetadata(blobId(pack))).lengthBytes;
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      throw error;
    }
  }
}
