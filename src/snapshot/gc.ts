import { SECOND_NS } from '../base/index.ts';
import {
  type ContentId,
  type IndexEntry,
  type ObjectId,
  parseObjectId,
  prefixOf,
  type TaskContext,
  type TaskPlan,
  type TaskStats,
  visitContents,
} from '../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { ContentIdSet, ObjectIdSet } from './key-set.ts';
import { listSnapshots } from './snapshot-manifest.ts';
import { walkDirectories } from './tree-walk.ts';

/** Entries looked at between two flushes of what changes. */
const BATCH_ENTRIES = 50_000;

/** What is counted, under Kopia's names. */
const COUNTED = [
  'unreferencedContent',
  'deletedContent',
  'unreferencedRecentContent',
  'inUseContent',
  'inUseSystemContent',
  'recoveredContent',
] as const;
type Counted = (typeof COUNTED)[number];

/**
 * Marks every content deleted that no snapshot reaches, incomplete ones included, and brings back what is reached. There is
 * no plan unless every snapshot could be walked to its last entry. The plan holds what is reached; what that means for
 * each content is looked up in the index on the way.
 */
export async function planGarbageCollection(context: TaskContext): Promise<TaskPlan> {
  const { contents } = context.repository;
  const collection = new Collection(context, await findUsedContents(context));
  return {
    count: () => {
      collection.batches().forEach(() => undefined);
      return collection.stats();
    },
    apply: async () => {
      for (const changes of collection.batches()) {
        if (changes.length === 0) continue;
        for (const [id, deleted] of changes) contents.setDeleted(id, deleted);
        await contents.flush();
      }
      return collection.stats();
    },
  };
}

class Collection {
  readonly #context: TaskContext;
  readonly #used: ContentIdSet;
  readonly #counts = new Map<Counted, [number, number]>();

  constructor(context: TaskContext, used: ContentIdSet) {
    this.#context = context;
    this.#used = used;
  }

  /**
   * What is to be marked deleted, or not deleted any more. Whoever takes a batch changes the index by it, so the iteration
   * starts again behind the last id.
   */
  *batches(): Generator<[ContentId, boolean][]> {
    const { repository, signal, progress } = this.#context;
    const { contents } = repository;
    let after: ContentId | undefined;
    progress?.begin(progress.task, 'contents', contents.contentCount);
    for (;;) {
      signal.throwIfAborted();
      let looked = 0;
      const changes: [ContentId, boolean][] = [];
      for (const entry of contents.entries({ after })) {
        after = entry.contentId;
        const deleted = this.#examine(entry);
        if (deleted !== undefined) changes.push([entry.contentId, deleted]);
        if (++looked === BATCH_ENTRIES) break;
      }
      if (progress) progress.done += looked;
      yield changes;
      if (looked < BATCH_ENTRIES) return;
    }
  }

  /** Undefined: it stays as it is. */
  #examine({
    contentId,
    deleted,
    timestampSeconds,
    originalLength,
  }: IndexEntry): boolean | undefined {
    const { safety, startNs } = this.#context;
    if (prefixOf(contentId) === 'm') {
      this.#count('inUseSystemContent', originalLength);
      return undefined;
    }
    if (this.#used.has(contentId)) {
      this.#count(deleted ? 'recoveredContent' : 'inUseContent', originalLength);
      return deleted ? false : undefined;
    }
    if (deleted) return undefined;
    this.#count('unreferencedContent', originalLength);
    const ageNs = startNs - BigInt(timestampSeconds) * SECOND_NS;
    if (ageNs < safety.minContentAgeSubjectToGcNs) {
      this.#count('unreferencedRecentContent', originalLength);
      return undefined;
    }
    this.#count('deletedContent', originalLength);
    return true;
  }

  #count(name: Counted, bytes: number): void {
    const [number, sum] = this.#counts.get(name) ?? [0, 0];
    this.#counts.set(name, [number + 1, sum + bytes]);
  }

  stats(): TaskStats {
    const data = COUNTED.flatMap((name) => {
      const [number, bytes] = this.#counts.get(name) ?? [0, 0];
      return [
        [`${name}Count`, number],
        [`${name}Size`, bytes],
      ] as const;
    });
    return { kind: 'snapshotGCStats', data: Object.fromEntries(data) };
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
  const visit = ({ objectId }: DirectoryEntry): Promise<void> | undefined => {
    if (progress) progress.done++;
    // Most objects are one content; only the others need a read.
    if (objectId.startsWith('I')) return mark(objectId);
    used.add(parseObjectId(objectId).contentId);
    return undefined;
  };
  const ids = roots.filter(isNew).map(({ objectId }) => objectId);
  await walkDirectories(repository, ids, { signal, isNew, visit });
  return used;
}
