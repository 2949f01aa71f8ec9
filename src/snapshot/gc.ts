import { SECOND_NS } from '../base/index.ts';
import {
  type IndexEntry,
  type IndexMarks,
  type MarkedRow,
  type TaskContext,
  type TaskPlan,
  type TaskStats,
} from '../repository/index.ts';
import { markUsedContents } from './used-contents.ts';

/**
 * Changes between two flushes: some 300 bytes each in memory. Our choice: each flush asks the
 * storage four times and more.
 */
const BATCH_CHANGES = 50_000;
/** Contents looked at between two looks at the signal. */
const ROWS_AT_ONCE = 50_000;
/** Walks that are begun anew because the index was read anew meanwhile. Our choice. */
const WALKS_MAX = 3;
const LETTER_M = 109;

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
 * Marks every content deleted that no snapshot reaches, incomplete ones included, and brings back
 * what is reached. There is no plan unless every snapshot could be walked to its last entry. The
 * plan holds a mark for each content of the index as it was before the walk; contents that came
 * later stay as they are. Whatever changes is decided by its entry of that moment. `batchChanges`:
 * tests lower it.
 */
export async function planGarbageCollection(
  context: TaskContext,
  batchChanges = BATCH_CHANGES,
): Promise<TaskPlan> {
  const { signal, repository } = context;
  const { contents } = repository;
  const marks = await markAll(context);
  const collection = new Collection(context, marks, batchChanges);
  return {
    count: () => {
      try {
        collection.batches().forEach(() => undefined);
        return collection.stats();
      } finally {
        marks.close();
      }
    },
    apply: async () => {
      try {
        // A content that another run has rewritten since must not get its old pack back, which is
        // deleted an hour later.
        await contents.refreshIfOld({ signal });
        for (const changes of collection.batches()) {
          for (const { entry, deleted } of changes) contents.setEntryDeleted(entry, deleted);
          await contents.flush();
          await contents.refreshIfOld({ signal });
        }
        return collection.stats();
      } finally {
        marks.close();
      }
    },
  };
}

/**
 * The index is read anew when a pack is missing on the way: another client may have moved what is
 * in it. The marks are of the index before that, so the walk begins again. Marks of an older index
 * are safe all the same, since contents that it does not name stay as they are; so the last walk
 * counts in any case.
 */
async function markAll(context: TaskContext): Promise<IndexMarks> {
  const { contents, manifests } = context.repository;
  for (let walk = 1; ; walk++) {
    const { marks, isCurrent } = contents.openMarks();
    // The snapshots must not be older than the marks: contents of one that is not listed would be
    // collected.
    manifests.invalidate();
    try {
      await markUsedContents(context, marks);
      if (isCurrent() || walk === WALKS_MAX) return marks;
    } catch (error) {
      marks.close();
      throw error;
    }
    marks.close();
  }
}

/** A content that is to be marked deleted, or not deleted any more, by its newest entry. */
interface Change {
  readonly entry: IndexEntry;
  readonly deleted: boolean;
}

class Collection {
  readonly #context: TaskContext;
  readonly #marks: IndexMarks;
  readonly #batchChanges: number;
  readonly #counts = new Map<Counted, [number, number]>();

  constructor(context: TaskContext, marks: IndexMarks, batchChanges: number) {
    this.#context = context;
    this.#marks = marks;
    this.#batchChanges = batchChanges;
  }

  /** What is to be changed, by entries that hold until the next await. */
  *batches(): Generator<Change[]> {
    const { repository, signal, progress } = this.#context;
    progress?.begin(progress.task, 'contents', repository.contents.contentCount);
    let looked = 0;
    let changes: Change[] = [];
    for (const row of this.#marks.rows()) {
      if (++looked % ROWS_AT_ONCE === 0) {
        signal.throwIfAborted();
        if (progress) progress.done += ROWS_AT_ONCE;
      }
      const change = this.#examine(row);
      if (change && changes.push(change) === this.#batchChanges) {
        yield changes;
        changes = [];
      }
    }
    yield changes;
  }

  /** Undefined: it stays as it is. */
  #examine(row: MarkedRow): Change | undefined {
    const { prefix, deleted, originalLength, isMarked } = row;
    if (prefix === LETTER_M) {
      this.#count('inUseSystemContent', originalLength);
      return undefined;
    }
    if (isMarked !== deleted) {
      if (isMarked) this.#count('inUseContent', originalLength);
      return undefined;
    }
    // The row is of the time before the walk.
    const entry = this.#context.repository.contents.find(row.entry.contentId);
    if (entry?.deleted !== deleted) return undefined;
    if (isMarked) this.#count('recoveredContent', originalLength);
    else if (!this.#isCollected(entry)) return undefined;
    return { entry, deleted: !isMarked };
  }

  #isCollected({ timestampSeconds, originalLength }: IndexEntry): boolean {
    const { safety, startNs } = this.#context;
    this.#count('unreferencedContent', originalLength);
    const ageNs = startNs - BigInt(timestampSeconds) * SECOND_NS;
    const isOld = ageNs >= safety.minContentAgeSubjectToGcNs;
    this.#count(isOld ? 'deletedContent' : 'unreferencedRecentContent', originalLength);
    return isOld;
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
