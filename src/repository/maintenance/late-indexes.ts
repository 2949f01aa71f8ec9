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

/**
 * What a compaction may take from its listing to its put, and blobs that land meanwhile are not in
 * it. Our choice.
 */
const COMPACTION_NS_MAX = HOUR_NS;
/** What clocks of writers and of the storage may differ by. */
const CLOCKS_APART_NS = HOUR_NS;
/** Entries that wait for an index, some 300 bytes each. Our choice. */
const ENTRIES_AT_ONCE = 50_000;

/** Index blobs that came after the compaction of their epoch and say more than the index does. */
export interface LateIndexes {
  /**
   * What they say was written once more in this run. They stay until a later run finds it all in
   * the index.
   */
  readonly adopted: ReadonlySet<BlobId>;
  /** They say nothing that is of use: packs that are gone, deletions of what is in use. */
  readonly spent: ReadonlySet<BlobId>;
}

export const NONE_LATE: LateIndexes = { adopted: new Set(), spent: new Set() };

/**
 * Which entries of late blobs are written anew. Quick maintenance takes only contents that the
 * index knows nothing of: that makes no pack lose its last entry, so that a full run may follow at
 * once.
 */
export type AdoptedEntries = 'all' | 'unknown';

/**
 * The plan names the late blobs; what of them is of use is found as they are read. A dry run makes
 * none.
 */
export interface LateAdoption {
  readonly apply: () => Promise<LateIndexes>;
}

/** What is to be done with an entry of a late blob. */
type Verdict = 'known' | 'adopt' | 'spent' | 'refuse';

/**
 * An index blob may land after its epoch was compacted: a put that hangs for days, and its writer
 * dies before it can take the blob back. Nobody reads it then, here or in Kopia. Its entries are
 * written once more, into the epoch that is written now, as they are. That cannot hide anything:
 * the newest entry of a content counts, and with epochs none is ever dropped from the index, so
 * that an entry which the index lacks was never undone. Entries whose pack is gone stay out, and so
 * do deletions of contents in use: backups rely on those, and the next collection decides anew.
 * Manifests that are older than the deletions which merges keep come in as deleted, and so do
 * merges of manifests: clients of Kopia keep no deletions.
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
      // What nobody can read names nothing; one that is gone was taken back by its writer.
      if (!isCode(error, 'DAMAGED_BLOB', 'BAD_INDEX', 'BLOB_NOT_FOUND')) throw error;
      logger.warn({ blobId: blob.id, error: error.message }, 'a late index blob cannot be read');
    }
  }
  await repository.contents.flush();
  return adoption;
}

/** Those whose marker is there: they run, or were killed before their flush returned. */
async function unfinishedSessions(storage: BlobStorage): Promise<Set<string>> {
  const sessions = new Set<string>();
  for await (const { id } of storage.listBlobs('s')) sessions.add(sessionOfBlob(id));
  // Names of before 2021 tell none.
  sessions.delete('');
  return sessions;
}

/**
 * What writers put into epochs after those were compacted, by the storage's clock. Its times may be
 * older than the blobs: a file has that of its last write, and comes by a rename that may hang
 * after it. So what belongs to a session that never ended counts too: a writer takes its marker
 * away after it has seen that its index blobs came in time.
 */
function findLate(state: EpochState, unfinished: ReadonlySet<string>): BlobMetadata[] {
  const late: BlobMetadata[] = [];
  for (const [epoch, blobs] of state.written) {
    const times = compactionsOf(state, epoch).map(newestOf);
    if (times.length === 0) continue;
    // A range made of the compaction came later, and lacks the same.
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

/** The same content, deleted a moment after it was written. */
const buried = (entry: IndexEntry): IndexEntry => ({
  ...entry,
  deleted: true,
  timestampSeconds: entry.timestampSeconds + 1,
});

/**
 * Whoever merges the contents of manifests marks those deleted in the same index blob, in Kopia
 * too.
 */
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
  /** Their lengths; undefined for those that are gone. */
  readonly #packs = new Map<string, number | undefined>();
  #waiting = 0;
  /** Whether the body at hand brings a merge of manifests. */
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
   * Manifests of long ago: merges have forgotten since then which of them were deleted. Their
   * writer died before anybody was told that they are there, so they come in as deleted, which
   * explains their pack.
   */
  #isForgotten({ contentId, timestampSeconds }: IndexEntry): boolean {
    if (prefixOf(contentId) !== 'm') return false;
    const known = this.#known(contentId);
    if (known && !known.deleted) return false;
    // What it merged was durable, and what became of that since then is in the index.
    if (this.#isMerge) return true;
    const ageNs = this.#context.startNs - BigInt(timestampSeconds) * SECOND_NS;
    return ageNs >= DELETIONS_KEPT_NS - CLOCKS_APART_NS;
  }

  /** What was adopted a moment ago is newer than what the index says. */
  #known(id: ContentId): IndexEntry | undefined {
    const { contents } = this.#context.repository;
    return contents.session.find(id) ?? contents.findHidden(id);
  }

  /** Undefined: it depends on the pack. */
  #judge(entry: IndexEntry): Verdict | undefined {
    const { contents } = this.#context.repository;
    if (isHidden(entry, contents.watermarkSeconds)) return 'known';
    const known = this.#known(entry.contentId);
    if (known && comparePrecedence(known, entry) >= 0) return 'known';
    // Whoever found it in use since then was right to rely on it, and its mark is older than all
    // margins.
    if (entry.deleted && known && !known.deleted) return 'spent';
    // Before it had epochs the index forgot what was deleted.
    if (BigInt(entry.timestampSeconds) * SECOND_NS <= this.#upgradedNs) return 'refuse';
    const isUnknown = !known && !entry.deleted && !this.#isForgotten(entry);
    return this.#what === 'all' || isUnknown ? undefined : 'refuse';
  }

  async #judgeByPack({ packBlobId, packOffset, packedLength }: IndexEntry): Promise<Verdict> {
    if (!this.#packs.has(packBlobId))
      this.#packs.set(packBlobId, await this.#packLength(packBlobId));
    return (this.#packs.get(packBlobId) ?? 0) >= packOffset + packedLength ? 'adopt' : 'spent';
  }

  /** Asked for by name: a listing may be old. */
  async #packLength(pack: string): Promise<number | undefined> {
    try {
      return (await this.#context.repository.storage.getMetadata(blobId(pack))).lengthBytes;
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      throw error;
    }
  }
}
