import { setImmediate } from 'node:timers/promises';
import { z } from 'zod';
import { formatGoTime, type Nanoseconds, parseGoTime } from '../../base/index.ts';
import { type ContentId, parseContentId } from '../index/content-id.ts';
import { DamagedContents } from '../content/damaged-contents.ts';
import type { ManifestId } from '../manifest/manifest-manager.ts';
import type { Repository } from '../repository.ts';

/** Kopia keeps manifests of unknown types, and shows them in `kopia manifest list`. */
const LABELS = { type: 'longshore-verification' };
const VERSION = 1;
/** Index entries read before yielding to the event loop. */
const ROWS_AT_ONCE = 50_000;

const schema = z.looseObject({
  version: z.literal(VERSION),
  time: z.string(),
  /** Where the next sample starts in the order of pack names, from 0 to 1. */
  position: z.number().min(0).max(1).optional(),
  /** Damaged contents of each pack. An empty list means the whole pack. */
  packs: z.record(z.string(), z.array(z.string())).optional().default({}),
  hasMore: z.boolean().optional().default(false),
});

/** Known results of verifications, stored in the repository. */
export interface VerificationRecord {
  readonly damaged: DamagedContents;
  readonly position: number | undefined;
  /** When a verification was last recorded. */
  readonly timeNs: Nanoseconds | undefined;
  /** The manifests of the record. Two clients may have written one each. */
  readonly ids: readonly ManifestId[];
}

/** Ignores records that are unreadable or of a later version. Throws errors of the manifests. */
export async function loadVerification({ manifests }: Repository): Promise<VerificationRecord> {
  const damaged = new DamagedContents();
  const ids: ManifestId[] = [];
  let position: number | undefined;
  let timeNs: Nanoseconds | undefined;
  for (const { id, data } of await manifests.find(LABELS)) {
    const parsed = schema.safeParse(data);
    if (!parsed.success) continue;
    ids.push(id);
    const { packs, hasMore } = parsed.data;
    // The newest record comes last.
    ({ position } = parsed.data);
    timeNs = timeOf(parsed.data.time);
    for (const [packBlobId, contentIds] of Object.entries(packs)) {
      if (contentIds.length === 0) damaged.addPack(packBlobId);
      for (const contentId of contentIds) {
        if (isContentId(contentId)) damaged.add({ packBlobId, contentId });
      }
    }
    if (hasMore) damaged.addMore();
  }
  return { damaged, position, timeNs, ids };
}

function timeOf(text: string): Nanoseconds | undefined {
  try {
    return parseGoTime(text);
  } catch {
    return undefined;
  }
}

function isContentId(text: string): text is ContentId {
  try {
    parseContentId(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Replaces the loaded record, durable after a flush. Stores nothing if there is nothing to record.
 * Returns the IDs of the new manifests.
 */
export function putVerification(
  { manifests, clock }: Repository,
  before: VerificationRecord,
  { damaged, position }: Pick<VerificationRecord, 'damaged' | 'position'>,
): ManifestId[] {
  for (const id of before.ids) manifests.delete(id);
  if (damaged.isEmpty && position === undefined) return [];
  const id = manifests.put(LABELS, {
    version: VERSION,
    time: formatGoTime(clock.nowNs()),
    ...(position !== undefined && { position }),
    ...(!damaged.isEmpty && { packs: Object.fromEntries(damaged.packs()) }),
    ...(damaged.hasMore && { hasMore: true }),
  });
  return [id];
}

/** The damage that the index still refers to, including deleted contents. Reads the index once. */
export async function remainingDamage(
  { contents }: Repository,
  damaged: DamagedContents,
  signal?: AbortSignal,
): Promise<{ damaged: DamagedContents; contents: number }> {
  const remaining = new DamagedContents();
  let [count, after]: [number, ContentId | undefined] = [0, undefined];
  for (;;) {
    let rows = 0;
    for (const entry of contents.entries({ after })) {
      rows++;
      after = entry.contentId;
      if (damaged.has(entry)) {
        if (!entry.deleted) count++;
        if (isWholePack(damaged, entry.packBlobId)) remaining.addPack(entry.packBlobId);
        else remaining.add(entry);
      }
      if (rows === ROWS_AT_ONCE) break;
    }
    if (rows < ROWS_AT_ONCE) break;
    await setImmediate();
    signal?.throwIfAborted();
  }
  // Only a verification can tell that no more damage exists.
  if (damaged.hasMore) remaining.addMore();
  return { damaged: remaining, contents: count };
}

/** A nonexistent content counts as damaged only if its whole pack does. */
const isWholePack = (damaged: DamagedContents, packBlobId: string): boolean =>
  damaged.has({ packBlobId, contentId: '' as ContentId });

/**
 * Call this before a backup, so that recorded damage does not count as stored. Lists packs if the
 * record is full, or if index blobs or manifests are unreadable. In these cases the index may name
 * missing packs. Otherwise it does not access the storage.
 */
export async function heedVerification(
  repository: Repository,
  listPacks: () => Promise<(packBlobId: string) => boolean>,
): Promise<void> {
  const { contents, manifests, clock } = repository;
  const { damaged } = await loadVerification(repository);
  contents.damaged.addAll(damaged);
  if (!damaged.hasMore && (await manifests.areComplete())) return;
  const atSeconds = Number(clock.nowNs() / 1_000_000_000n);
  contents.damaged.setListed({ has: await listPacks(), atSeconds });
}

/**
 * Records damage after a backup that has found some or has stored damaged contents again. Flush the
 * backup first. Removes nothing from the record: a concurrent garbage collection may still restore
 * an entry with the damaged place. Only a verification removes damage that no entry names. Returns
 * how many undeleted damaged contents remain, or undefined if there was nothing to do.
 */
export async function recordAfterBackup(
  repository: Repository,
  signal?: AbortSignal,
): Promise<{ storedAgain: number; left: number } | undefined> {
  const { contents, manifests } = repository;
  const { storedAgain, found } = contents.damaged;
  if (storedAgain === 0 && found === 0) return undefined;
  // A verification may have recorded more meanwhile.
  manifests.invalidate();
  const before = await loadVerification(repository);
  contents.damaged.addAll(before.damaged);
  const { damaged } = contents;
  const { contents: left } = await remainingDamage(repository, damaged, signal);
  if (found > 0) {
    putVerification(repository, before, { damaged, position: before.position });
    await repository.flush();
  }
  contents.damaged.startCounting();
  return { storedAgain, left };
}
