import { z } from 'zod';
import { isCode, lookup } from '../../base/index.ts';
import type { ContentId } from '../index/content-id.ts';
import type { IndexEntry } from '../index/entry.ts';
import { decodeManifests, type StoredEntry } from '../manifest/manifest-content.ts';
import type { ManifestId } from '../manifest/manifest-manager.ts';
import { parseObjectId } from '../object/object-id.ts';
import type { Repository } from '../repository.ts';

/** Kopia keeps manifests of unknown types. */
const LABELS = { type: 'longshore-lost-manifests' };
/** A merge misses lists that other clients wrote shortly before. Our choice. */
const UNSEEN_SECONDS = 3600;

export interface LostManifests {
  /** Unreadable contents with snapshots and policies. */
  readonly lostManifests: readonly { contentId: string; blobId: string; message: string }[];
  /** Lists that an earlier repair gave up and that are readable again. */
  readonly returnedManifests: number;
  /** Lists named only by their packs. */
  readonly recoveredManifests: number;
}

export interface RepairManifestsOptions {
  readonly dryRun: boolean;
  /** Manifest lists that the index lacks, from the packs' local indexes. */
  readonly unknown: readonly IndexEntry[];
  /** Deletions from the packs' local indexes. */
  readonly marks: ReadonlyMap<ContentId, IndexEntry>;
  readonly known: (id: ContentId) => IndexEntry | undefined;
  readonly add: (entries: readonly IndexEntry[]) => Promise<void>;
}

const entrySchema = z.object({
  contentId: z.string(),
  packBlobId: z.string(),
  packOffset: z.int(),
  packedLength: z.int(),
  originalLength: z.int(),
  timestampSeconds: z.int(),
  formatVersion: z.int(),
  compressionHeaderId: z.int(),
});
const recordSchema = z.object({ version: z.literal(1), contents: z.array(entrySchema) });

/**
 * Adds manifest lists that only their packs name. Lists replaced by a merge stay deleted: their
 * snapshots may have been deleted since, and merges drop deletions. Unreadable lists are marked as
 * deleted, so that clients continue without them. A note lets a later repair restore them.
 */
export async function repairManifests(
  repository: Repository,
  options: RepairManifestsOptions,
): Promise<LostManifests> {
  const { contents, manifests } = repository;
  const { dryRun, add } = options;
  const noted = await loadNoted(repository);
  const gaveUp = new Set(noted.entries.map(({ contentId }) => contentId));
  const recovered = await judgeAll(repository, options, gaveUp);
  await add(recovered);
  if (!dryRun) await contents.flush();
  manifests.invalidate();
  const unreadable = await manifests.loadUnreadable();
  const lost = unreadable.flatMap(({ facts }) => contents.find(facts.contentId as ContentId) ?? []);
  const returned: IndexEntry[] = [];
  for (const entry of noted.entries) {
    const known = contents.find(entry.contentId);
    if (known?.deleted === false || !(await readManifests(repository, entry))) continue;
    const timestampSeconds = contents.timestampAfter(known);
    returned.push({ ...entry, deleted: false, timestampSeconds });
  }
  await add(returned);
  for (const entry of lost) {
    const timestampSeconds = contents.timestampAfter(entry);
    await add([{ ...entry, deleted: true, timestampSeconds }]);
  }
  if (!dryRun && lost.length + returned.length > 0) {
    const back = new Set(returned.map(({ contentId }) => contentId));
    const left = [...noted.entries.filter(({ contentId }) => !back.has(contentId)), ...lost];
    for (const id of noted.ids) manifests.delete(id);
    if (left.length > 0) manifests.put(LABELS, { version: 1, contents: left.map(noteOf) });
    await manifests.writePending();
    await contents.flush();
    manifests.invalidate();
  }
  return {
    lostManifests: unreadable.map(({ message, facts }) => ({
      contentId: String(facts.contentId),
      blobId: String(facts.blobId),
      message,
    })),
    returnedManifests: returned.length,
    recoveredManifests: recovered.filter(({ deleted }) => !deleted).length,
  };
}

/** Decides which unknown lists are added, and which are added as deleted. */
async function judgeAll(
  repository: Repository,
  { unknown, marks, known }: RepairManifestsOptions,
  gaveUp: ReadonlySet<ContentId>,
): Promise<IndexEntry[]> {
  let mergedSeconds = 0;
  const note = ({ contentId, deleted, timestampSeconds }: IndexEntry): void => {
    // Lists given up by a repair were not merged.
    if (deleted && !gaveUp.has(contentId))
      mergedSeconds = Math.max(mergedSeconds, timestampSeconds);
  };
  for (const entry of repository.contents.entries({ prefix: 'm', hidden: true })) note(entry);
  for (const entry of marks.values()) if (entry.contentId.startsWith('m')) note(entry);
  const judged: IndexEntry[] = [];
  for (const entry of unknown) {
    const mark = marks.get(entry.contentId);
    const isMerged = entry.timestampSeconds < mergedSeconds - UNSEEN_SECONDS;
    if (mark && mark.timestampSeconds >= entry.timestampSeconds) judged.push(mark);
    else if (!isMerged && (await isOfUse(repository, entry, known))) judged.push(entry);
    else judged.push({ ...entry, deleted: true, timestampSeconds: entry.timestampSeconds + 1 });
  }
  return judged;
}

/** Whether the list may be current. If all snapshot roots are lost, it was merged long ago. */
async function isOfUse(
  repository: Repository,
  entry: IndexEntry,
  known: RepairManifestsOptions['known'],
): Promise<boolean> {
  const stored = await readManifests(repository, entry);
  if (!stored) return false;
  const roots = stored.flatMap((each) => rootOf(each) ?? []);
  return roots.length === 0 || roots.some((id) => known(id) !== undefined);
}

/** Undefined if unreadable. */
async function readManifests(
  { contents }: Repository,
  entry: IndexEntry,
): Promise<StoredEntry[] | undefined> {
  try {
    return decodeManifests(contents.openPacked(entry, await contents.getPacked(entry)));
  } catch (error) {
    if (isCode(error, 'DAMAGED_BLOB', 'BAD_MANIFEST')) return undefined;
    throw error;
  }
}

const rootSchema = z.looseObject({ rootEntry: z.looseObject({ obj: z.string() }) });

function rootOf({ labels, deleted, data }: StoredEntry): ContentId | undefined {
  if (deleted || lookup(labels, 'type') !== 'snapshot') return undefined;
  const parsed = rootSchema.safeParse(data);
  if (!parsed.success) return undefined;
  try {
    return parseObjectId(parsed.data.rootEntry.obj).contentId;
  } catch {
    return undefined;
  }
}

async function loadNoted({
  manifests,
}: Repository): Promise<{ entries: IndexEntry[]; ids: ManifestId[] }> {
  const entries = new Map<string, IndexEntry>();
  const ids: ManifestId[] = [];
  for (const { id, data } of await manifests.find(LABELS)) {
    const parsed = recordSchema.safeParse(data);
    if (!parsed.success) continue;
    ids.push(id);
    for (const entry of parsed.data.contents) {
      const contentId = entry.contentId as ContentId;
      entries.set(contentId, { ...entry, contentId, deleted: false, encryptionKeyId: 0 });
    }
  }
  return { entries: [...entries.values()], ids };
}

const noteOf = (entry: IndexEntry): object => entrySchema.parse(entry);
