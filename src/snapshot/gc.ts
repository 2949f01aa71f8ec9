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

/** Changes between two flushes, 300 bytes each. Our choice: a flush makes four requests. */
const BATCH_CHANGES = 50_000;
/** Contents read between two checks of the signal. */
const ROWS_AT_ONCE = 50_000;
/** Maximum walks. A walk restarts if the index was reloaded meanwhile. Our choice. */
const WALKS_MAX = 3;
const LETTER_M = 109;

/** Counters, by Kopia's names. */
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
 * Plans to mark every content as deleted that no snapshot reaches, and to undelete reached
 * contents. Incomplete snapshots count too. Fails unless every snapshot can be walked completely.
 * The plan holds a mark for each content of the index before the walk. Newer contents stay
 * unchanged. Each change uses the content's current entry. Tests lower `batchChanges`.
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
        // A content may have been moved to a new pack by another run. The old pack is deleted an
        // hour later, so do not restore the old entry.
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
 * Walks again if the index was reloaded. That happens if a pack is missing, because another client
 * may have moved its contents. Then the marks are of the older index. They are still safe, because
 * contents missing in it stay unchanged. So the last walk counts in any case.
 */
async function markAll(context: TaskContext): Promise<IndexMarks> {
  const { contents, manifests } = context.repository;
  for (let walk = 1; ; walk++) {
    const { marks, isCurrent } = contents.openMarks();
    // List snapshots after the marks were opened. Otherwise the contents of an unlisted snapshot
    // would be collected.
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

/** A content to mark as deleted or to undelete, by its newest entry. */
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

  /** The changes. Their entries are valid until the next await. */
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

  /** Undefined if the content stays unchanged. */
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
    // The row is older than the walk, so look up the current entry.
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
