import { setImmediate } from 'node:timers/promises';
import { z } from 'zod';
import { formatGoTime, type Nanoseconds, parseGoTime } from '../../base/index.ts';
import { type ContentId, parseContentId } from '../index/content-id.ts';
import { DamagedContents } from '../content/damaged-contents.ts';
import type { ManifestId } from '../manifest/manifest-manager.ts';
import type { Repository } from '../repository.ts';

/**
 * Kopia keeps manifests of types that it does not know, and shows them in `kopia manifest list`.
 */
const LABELS = { type: 'longshore-verification' };
const VERSION = 1;
/** Index entries looked at between two looks at the event loop. */
const ROWS_AT_ONCE = 50_000;

const schema = z.looseObject({
  version: z.literal(VERSION),
  time: z.string(),
  /**
   * Of the packs in the order of their names, from 0 to 1: where the next verification by sample
   * goes on.
   */
  position: z.number().min(0).max(1).optional(),
  /** The contents of each pack; an empty list stands for all. */
  packs: z.record(z.string(), z.array(z.string())).optional().default({}),
  hasMore: z.boolean().optional().default(false),
});

/** What verifications have found, as far as it is known; durable in the repository. */
export interface VerificationRecord {
  readonly damaged: DamagedContents;
  readonly position: number | undefined;
  /** When a verification was last recorded. */
  readonly timeNs: Nanoseconds | undefined;
  /** The manifests that it was read from; two clients may have written one each. */
  readonly ids: readonly ManifestId[];
}

/**
 * Throws what the manifests throw. What cannot be parsed, or is of a later version, counts as none
 * and stays.
 */
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
    // The newest comes last.
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
 * Replaces what was loaded; durable after a flush. Nothing is stored where there is nothing to
 * tell. Returns the IDs of what is stored.
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

/**
 * What of the damage the index still leads to, contents that are marked deleted included. One pass
 * over the index.
 */
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
  // Only a verification can tell that there is no more.
  if (damaged.hasMore) remaining.addMore();
  return { damaged: remaining, contents: count };
}

/** A name that no content has is damaged only with its whole pack. */
const isWholePack = (damaged: DamagedContents, packBlobId: string): boolean =>
  damaged.has({ packBlobId, contentId: '' as ContentId });

/**
 * Call it before a backup: recorded damage does not count as stored from here on. Packs are listed
 * if there is more damage than a record holds, or if index blobs or manifests cannot be read. The
 * index may then name packs that are gone. Without damage it asks nobody.
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
 * After a backup that has stored damaged contents again, or has come across damage: records what it
 * has come across. Nothing is taken back: a garbage collection that looked before the backup may
 * still put an entry with the damaged place in front. Only a verification removes what no entry
 * names any more. The backup must be flushed. Returns how many contents are left that are not
 * marked deleted; undefined where nothing had to be done.
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
