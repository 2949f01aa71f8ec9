import { messageOf, type Nanoseconds, unixSeconds } from '../../base/index.ts';
import { CLOCK_SKEW_NS_MAX } from '../clock-skew.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import { cleanupLogs } from './cleanup-logs.ts';
import { deleteUnreferencedPacks, livePacks, ROW_COUNT } from './delete-packs.ts';
import {
  advanceEpoch,
  cleanupMarkers,
  compactRange,
  compactSingleEpoch,
  deleteSupersededIndexes,
  putWatermark,
} from './epochs.ts';
import { extendObjectLocks } from './extend-locks.ts';
import {
  type AdoptedEntries,
  adoptLateIndexes,
  type LateIndexes,
  NONE_LATE,
} from './late-indexes.ts';
import { compactLegacyIndexes } from './legacy-indexes.ts';
import type { MaintenanceParameters } from './parameters.ts';
import { rewriteShortPacks } from './rewrite-packs.ts';
import { putSchedule, type Schedule, type TaskRun } from './schedule.ts';
import type { TaskContext, TaskStats } from './task.ts';
import { cleanUpUnfinishedPuts } from './unfinished-puts.ts';

/** Marks what no snapshot reaches; snapshots lie above this layer. */
export type CollectGarbage = (context: TaskContext) => Promise<TaskStats>;

export interface TaskReport {
  readonly task: string;
  readonly stats?: TaskStats['data'];
  /** Why it was not run. */
  readonly skipped?: string;
}

/** How many contents the index had when packs were deleted last; undefined when that was not by us. */
export function countedRows(repository: Repository, schedule: Schedule): number | undefined {
  const tasks = ['full-delete-blobs', 'quick-delete-blobs'];
  // In format 1 it takes rows away.
  if (!repository.format.parameters.epochParameters.Enabled)
    tasks.push('full-drop-deleted-content');
  const newest = tasks
    .flatMap((task) => successful(repository, schedule, task).at(0) ?? [])
    .reduce((a: TaskRun | undefined, b) => (a && a.endNs > b.endNs ? a : b), undefined);
  const [extra] = Array.isArray(newest?.extra) ? (newest.extra as unknown[]) : [];
  const count = (extra as { data?: Record<string, unknown> } | undefined)?.data?.[ROW_COUNT];
  return typeof count === 'number' ? count : undefined;
}

/** Newest first. What ended in the future was run while the clock was ahead, and does not count. */
function successful({ clock }: Repository, { runs }: Schedule, task: string): TaskRun[] {
  const latest = clock.nowNs() + CLOCK_SKEW_NS_MAX;
  return (runs.get(task) ?? []).filter(({ success, endNs }) => success && endNs <= latest);
}

type Task = (context: TaskContext) => Promise<TaskStats | undefined>;

/** One run: tasks in Kopia's order, each written to the schedule. */
export class Cycle {
  readonly reports: TaskReport[] = [];
  readonly #context: TaskContext;
  readonly #parameters: MaintenanceParameters;
  readonly #schedule: Schedule;
  /** Packs with contents that were not deleted before the index was last read anew. */
  #livePacks: ReadonlySet<string> = new Set();
  #late: LateIndexes = NONE_LATE;

  constructor(context: TaskContext, parameters: MaintenanceParameters, schedule: Schedule) {
    this.#context = context;
    this.#parameters = parameters;
    this.#schedule = schedule;
  }

  get #hasEpochs(): boolean {
    return this.#context.repository.format.parameters.epochParameters.Enabled;
  }

  async runQuick(): Promise<void> {
    if (this.#hasEpochs) {
      await this.#adoptLate('unknown');
      await this.#run('compact-single-epoch', compactSingleEpoch);
      await this.#run('advance-epoch', advanceEpoch);
      return;
    }
    const rewrite = (context: TaskContext): Promise<TaskStats> => rewriteShortPacks(context, ['q']);
    if (this.#mayRewrite('full-rewrite-contents', 'quick-rewrite-contents')) {
      await this.#run('quick-rewrite-contents', rewrite);
    } else {
      this.#skip('quick-rewrite-contents', 'packs of the last rewrite have not been deleted yet');
    }
    await this.#deletePacks('quick-delete-blobs', ['q']);
    await this.#run('index-compaction', (context) =>
      compactLegacyIndexes(context, { allIndexes: false }),
    );
    await this.#run('cleanup-logs', (context) => cleanupLogs(context, this.#parameters));
  }

  async runFull(collectGarbage: CollectGarbage): Promise<void> {
    const packs = await Promise.allSettled([this.#lookAfterPacks(collectGarbage)]);
    // Also where a collection or a deletion refuses, day after day: locks that nobody extends end meanwhile.
    const locks = await Promise.allSettled([this.#extendLocks()]);
    if (packs[0].status === 'rejected') throw packs[0].reason;
    if (this.#hasEpochs) {
      await this.#run('compact-single-epoch', compactSingleEpoch);
      await this.#run('advance-epoch', advanceEpoch);
      await this.#run('generate-epoch-range-index', compactRange);
      await this.#run('cleanup-epoch-markers', cleanupMarkers);
      await this.#run('delete-superseded-epoch-indexes', (context) =>
        deleteSupersededIndexes(context, this.#late),
      );
    }
    await this.#run('cleanup-logs', (context) => cleanupLogs(context, this.#parameters));
    // Not in the schedule: Kopia has no such task.
    const unfinished = await cleanUpUnfinishedPuts(this.#context);
    if (unfinished) this.reports.push({ task: 'cleanup-unfinished-puts', stats: unfinished });
    // Blobs may refuse for as long as they are locked already, and the index has to be looked after meanwhile.
    if (locks[0].status === 'rejected') throw locks[0].reason;
  }

  async #lookAfterPacks(collectGarbage: CollectGarbage): Promise<void> {
    await this.#adoptLate('all');
    await this.#restoreDeletions();
    await this.#run('snapshot-gc', collectGarbage);
    const dropNs = this.#safeDropTime();
    // A watermark hides up to its second; the legacy compaction drops what is older.
    const limit = dropNs === undefined ? -1 : unixSeconds(dropNs) - (this.#hasEpochs ? 0 : 1);
    const isDropped = ({ deleted, timestampSeconds }: IndexEntry): boolean =>
      deleted && timestampSeconds <= limit;
    if (this.#mayRewrite('full-rewrite-contents')) {
      await this.#run('full-rewrite-contents', (context) =>
        rewriteShortPacks(context, ['p', 'q'], isDropped),
      );
    } else {
      this.#skip('full-rewrite-contents', 'packs of the last rewrite have not been deleted yet');
    }
    await this.#dropDeleted(dropNs);
    await this.#deletePacks('full-delete-blobs', ['p', 'q', 's']);
  }

  async #extendLocks(): Promise<void> {
    if (!this.#parameters.extendObjectLocks) return;
    const { storage, format } = this.#context.repository;
    const task = 'extend-blob-retention-time';
    if (!storage.hasObjectLock) this.#skip(task, 'this storage has no object lock');
    else if (!format.retention) this.#skip(task, 'the repository names no retention');
    else await this.#run(task, extendObjectLocks);
  }

  /** Not in the schedule: Kopia has no such task. */
  async #adoptLate(what: AdoptedEntries): Promise<void> {
    if (!this.#hasEpochs || !this.#context.apply) return;
    this.#late = await adoptLateIndexes(this.#context, what);
    const { adopted, spent } = this.#late;
    if (adopted.size + spent.size === 0) return;
    const data = { adoptedBlobCount: adopted.size, uselessBlobCount: spent.size };
    this.reports.push({ task: 'adopt-late-indexes', stats: data });
    // Manifests may have come with it.
    this.#context.repository.manifests.invalidate();
  }

  /** Before the collection, which keeps what a manifest names. Not in the schedule either. */
  async #restoreDeletions(): Promise<void> {
    const { repository, apply, logger } = this.#context;
    if (!apply) return;
    const restoredManifestCount = await repository.manifests.restoreDeletions();
    if (restoredManifestCount === 0) return;
    this.reports.push({ task: 'restore-manifest-deletions', stats: { restoredManifestCount } });
    const text =
      'manifests that were deleted came back by merges of two clients at once; deleted again';
    logger.warn({ manifests: restoredManifestCount }, text);
  }

  /** Why this run deletes nothing that others may still use by an index they read before. */
  get #adoptedReason(): string | undefined {
    if (this.#late.adopted.size === 0) return undefined;
    return 'index blobs that came late were written anew in this run: the next one goes on';
  }

  async #dropDeleted(untilNs: Nanoseconds | undefined): Promise<void> {
    const task = 'full-drop-deleted-content';
    this.#livePacks = livePacks(this.#context.repository);
    const lastFailed = ['full-delete-blobs', 'delete-superseded-epoch-indexes'].some(
      (each) => this.#schedule.runs.get(each)?.[0]?.success === false,
    );
    if (lastFailed) {
      this.#skip(task, 'the last run refused to delete: what is marked deleted stays in the index');
      return;
    }
    if (this.#adoptedReason !== undefined) {
      this.#skip(task, this.#adoptedReason);
      return;
    }
    if (untilNs === undefined) {
      this.#skip(task, 'two garbage collections with enough time between them are needed first');
      return;
    }
    await this.#run(task, async (context) => {
      if (!this.#hasEpochs) {
        const options = { allIndexes: true, dropDeletedBeforeNs: untilNs };
        return compactLegacyIndexes(context, options);
      }
      await putWatermark(context, untilNs);
      return undefined;
    });
    // What is hidden or dropped now must be so for the tasks that follow.
    if (this.#context.apply) await this.#context.repository.contents.refresh();
  }

  /** Kopia: findSafeDropTime. */
  #safeDropTime(): Nanoseconds | undefined {
    const { safety, repository } = this.#context;
    if (!safety.requireTwoGcCycles) return repository.clock.nowNs();
    const runs = this.#successful('snapshot-gc').sort((a, b) => (a.startNs > b.startNs ? -1 : 1));
    const [newest] = runs;
    if (!newest) return undefined;
    const earlier = runs.find(
      ({ endNs }) => newest.startNs - endNs > safety.marginBetweenSnapshotGcNs,
    );
    return earlier && earlier.startNs - safety.dropContentExtraMarginNs;
  }

  async #deletePacks(task: string, prefixes: string[]): Promise<void> {
    if (this.#adoptedReason !== undefined) {
      this.#skip(task, this.#adoptedReason);
      return;
    }
    const { safety, repository } = this.#context;
    const rewritten = this.#lastEnd('full-rewrite-contents', 'quick-rewrite-contents');
    const earliest = rewritten + safety.minRewriteToOrphanDeletionDelayNs;
    if (rewritten > 0n && repository.clock.nowNs() < earliest) {
      this.#skip(task, 'readers may still use the packs of the last rewrite');
      return;
    }
    const earlierRowCount = countedRows(repository, this.#schedule);
    const kept = this.#livePacks;
    await this.#run(task, (context) =>
      deleteUnreferencedPacks(context, { prefixes, earlierRowCount, kept }),
    );
  }

  /** A rewrite makes orphans that wait for deletion: the next one comes after it. */
  #mayRewrite(...tasks: string[]): boolean {
    const { safety } = this.#context;
    const rewritten = this.#lastEnd(...tasks);
    if (rewritten === 0n || safety.minRewriteToOrphanDeletionDelayNs === 0n) return true;
    return this.#lastEnd('full-delete-blobs', 'quick-delete-blobs') >= rewritten;
  }

  #successful(task: string): TaskRun[] {
    return successful(this.#context.repository, this.#schedule, task);
  }

  #lastEnd(...tasks: string[]): Nanoseconds {
    const ends = tasks.flatMap((task) => this.#successful(task).map(({ endNs }) => endNs));
    return ends.reduce((a, b) => (a > b ? a : b), 0n);
  }

  #skip(task: string, reason: string): void {
    this.reports.push({ task, skipped: reason });
  }

  async #run(task: string, run: Task): Promise<void> {
    const { repository, signal, apply, logger, progress } = this.#context;
    signal.throwIfAborted();
    progress?.begin(task);
    const startNs = repository.clock.nowNs();
    try {
      const stats = await run(this.#context);
      this.reports.push({ task, ...(stats && { stats: stats.data }) });
      const extra = stats ? [{ kind: stats.kind, data: stats.data }] : undefined;
      const endNs = repository.clock.nowNs();
      if (apply) await this.#record(task, { startNs, endNs, success: true, extra });
    } catch (error) {
      logger.error({ task, error: messageOf(error) }, 'maintenance task failed');
      const endNs = repository.clock.nowNs();
      const failed = { startNs, endNs, success: false, error: messageOf(error) };
      // The failure itself matters more than the note about it.
      if (apply) await this.#record(task, failed).catch(() => undefined);
      throw error;
    }
  }

  async #record(task: string, run: TaskRun): Promise<void> {
    this.#schedule.runs.set(task, [run, ...(this.#schedule.runs.get(task) ?? [])]);
    await putSchedule(this.#context.repository, this.#schedule);
  }
}
