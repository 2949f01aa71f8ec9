import { SECOND_NS } from '../base/index.ts';
import {
  type ContentId,
  type IndexEntry,
  type ObjectId,
  parseObjectId,
  prefixOf,
  type Repository,
  type TaskContext,
  type TaskStats,
  visitContents,
} from '../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { ContentIdSet, ObjectIdSet } from './key-set.ts';
import { listSnapshots } from './snapshot-manifest.ts';
import { walkDirectories } from './tree-walk.ts';

/** Entries looked at between two flushes of what changes. */
const BATCH_ENTRIES = 50_000;

/**
 * Marks every content deleted that no snapshot reaches, incomplete ones included, and brings back
 * what is reached. Nothing is changed unless every snapshot could be walked to its last entry.
 */
export async function collectGarbage(context: TaskContext): Promise<TaskStats> {
  const { repository, safety, apply, startNs } = context;
  const used = await findUsedContents(context);
  const counts = new Map<string, [number, number]>();
  const count = (name: string, bytes: number): void => {
    const [number, sum] = counts.get(name) ?? [0, 0];
    counts.set(name, [number + 1, sum + bytes]);
  };
  const examine = (entry: IndexEntry): boolean | undefined => {
    const { contentId, deleted, timestampSeconds, originalLength } = entry;
    if (prefixOf(contentId) === 'm') {
      count('inUseSystemContent', originalLength);
      return undefined;
    }
    if (used.has(contentId)) {
      count(deleted ? 'recoveredContent' : 'inUseContent', originalLength);
      return deleted ? false : undefined;
    }
    if (deleted) return undefined;
    count('unreferencedContent', originalLength);
    const ageNs = startNs - BigInt(timestampSeconds) * SECOND_NS;
    if (ageNs < safety.minContentAgeSubjectToGcNs) {
      count('unreferencedRecentContent', originalLength);
      return undefined;
    }
    count('deletedContent', originalLength);
    return true;
  };
  await forEachBatch(repository, context, examine, apply);
  const names = [
    'unreferencedContent',
    'deletedContent',
    'unreferencedRecentContent',
    'inUseContent',
    'inUseSystemContent',
    'recoveredContent',
  ];
  const data = names.flatMap((name) => {
    const [number, bytes] = counts.get(name) ?? [0, 0];
    return [
      [`${name}Count`, number],
      [`${name}Size`, bytes],
    ] as const;
  });
  return { kind: 'snapshotGCStats', data: Object.fromEntries(data) };
}

/** The index changes with each flush, so the iteration starts again behind the last id. */
async function forEachBatch(
  { contents }: Repository,
  { signal, progress }: TaskContext,
  examine: (entry: IndexEntry) => boolean | undefined,
  apply: boolean,
): Promise<void> {
  let after: ContentId | undefined;
  progress?.begin(progress.task, 'contents', contents.contentCount);
  for (;;) {
    signal.throwIfAborted();
    let looked = 0;
    const changes: [ContentId, boolean][] = [];
    for (const entry of contents.entries({ after })) {
      after = entry.contentId;
      const deleted = examine(entry);
      if (deleted !== undefined) changes.push([entry.contentId, deleted]);
      if (++looked === BATCH_ENTRIES) break;
    }
    if (progress) progress.done += looked;
    if (apply && changes.length > 0) {
      for (const [id, deleted] of changes) contents.setDeleted(id, deleted);
      await contents.flush();
    }
    if (looked < BATCH_ENTRIES) return;
  }
}

/** Everything reachable; any error ends the collection before it has changed anything. */
async function findUsedContents({
  repository,
  signal,
  progress,
}: TaskContext): Promise<ContentIdSet> {
  const { contents } = repository;
  const used = new ContentIdSet();
  progress?.begin(progress.task, 'entries');
  const mark = (id: ObjectId): Promise<void> =>
    visitContents(contents, id, (contentId) => void used.add(contentId));
  const roots = (await listSnapshots(repository)).flatMap(({ rootEntry }) => rootEntry ?? []);
  for (const root of roots) await mark(root.objectId);
  const walked = new ObjectIdSet();
  const isNew = ({ type, objectId }: DirectoryEntry): boolean =>
    type === 'd' && walked.add(objectId);
  const visit = ({ objectId }: DirectoryEntry): Promise<void> | void => {
    if (progress) progress.done++;
    // Most objects are one content; only the others need a read.
    if (objectId.startsWith('I')) return mark(objectId);
    used.add(parseObjectId(objectId).contentId);
  };
  const ids = roots.filter(isNew).map(({ objectId }) => objectId);
  await walkDirectories(repository, ids, { signal, isNew, visit });
  return used;
}
