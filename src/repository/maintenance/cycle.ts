import { HOUR_NS, isCode, messageOf, type Nanoseconds, unixSeconds } from '../../base/index.ts';
import { CLOCK_SKEW_NS_MAX } from '../clock-skew.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import { packsInIndex, planPackDeletion, ROW_COUNT } from './delete-packs.ts';
import {
  planEpochAdvance,
  planMarkerCleanup,
  planRangeCompaction,
  planSingleEpochCompaction,
  planSupersededIndexDeletion,
  planWatermark,
} from './epochs.ts';
import { planLockExtension } from './extend-locks.ts';
import {
  type AdoptedEntries,
  type LateIndexes,
  NONE_LATE,
  planLateAdoption,
} from './late-indexes.ts';
import { planLegacyCompaction } from './legacy-indexes.ts';
import type { MaintenanceParameters } from './parameters.ts';
import { planPackRewrite } from './rewrite-packs.ts';
import { putSchedule, type Schedule, type TaskRun } from './schedule.ts';
import type { PlanTask, TaskContext, TaskPlan, TaskStats } from './task.ts';
import type { BlobMetadata, UnfinishedPutsOptions } from '../../blob/index.ts';

export interface CycleOptions {
  readonly context: TaskContext;
  readonly parameters: MaintenanceParameters;
  readonly schedule: Schedule;
  /** Count the plans, but apply none. */
  readonly dryRun: boolean;
}

/** For tasks to skip when the storage is full, because later tasks free space. */
const TAKES_ROOM = { takesRoom: true };

export interface TaskReport {
  readonly task: string;
  readonly stats?: TaskStats['data'];
  /** Why the task did not run. */
  readonly skipped?: string;
}

/** The index's content count at the last deletion of packs. Undefined if Kopia ran it. */
export function countedRows(repository: Repository, schedule: Schedule): number | undefined {
  const tasks = ['full-delete-blobs', 'quick-delete-blobs'];
  // In format 1, this task removes rows.
  if (!repository.format.parameters.epochParameters.Enabled)
    tasks.push('full-drop-deleted-content');
  const newest = tasks
    .flatMap((task) => successful(repository, schedule, task).at(0) ?? [])
    .reduce((a: TaskRun | undefined, b) => (a && a.endNs > b.endNs ? a : b), undefined);
  const [extra] = Array.isArray(newest?.extra) ? (newest.extra as unknown[]) : [];
  const count = (extra as { data?: Record<string, unknown> } | undefined)?.data?.[ROW_COUNT];
  return typeof count === 'number' ? count : undefined;
}

/** Successful runs, newest first. Runs that end in the future are left out: the clock was ahead. */
function successful({ clock }: Repository, { runs }: Schedule, task: string): TaskRun[] {
  const latest = clock.nowNs() + CLOCK_SKEW_NS_MAX;
  return (runs.get(task) ?? []).filter(({ success, endNs }) => success && endNs <= latest);
}

/**
 * A maintenance run. Tasks follow Kopia's order. Each is planned, applied and recorded in the
 * schedule. Tasks do not know about dry runs.
 */
export class Cycle {
  readonly reports: TaskReport[] = [];
  readonly #context: TaskContext;
  readonly #parameters: MaintenanceParameters;
  readonly #schedule: Schedule;
  readonly #dryRun: boolean;
  /** Packs with undeleted contents, before the last refresh of the index. */
  #livePacks: ReadonlySet<string> = new Set();
  #late: LateIndexes = NONE_LATE;

  constructor({ context, parameters, schedule, dryRun }: CycleOptions) {
    this.#context = context;
    this.#parameters = parameters;
    this.#schedule = schedule;
    this.#dryRun = dryRun;
  }

  get #hasEpochs(): boolean {
    return this.#context.repository.format.parameters.epochParameters.Enabled;
  }

  async runQuick(): Promise<void> {
    if (this.#hasEpochs) {
      await this.#adoptLate('unknown');
      await this.#run('compact-single-epoch', planSingleEpochCompaction);
      await this.#run('advance-epoch', planEpochAdvance);
      return;
    }
    if (this.#mayRewrite('full-rewrite-contents', 'quick-rewrite-contents')) {
      const plan: PlanTask = (context) => planPackRewrite(context, ['q']);
      await this.#run('quick-rewrite-contents', plan, TAKES_ROOM);
    } else {
      this.#skip(
        'quick-rewrite-contents',
        'the packs of the last rewrite have not been deleted yet',
      );
    }
    await this.#deletePacks('quick-delete-blobs', ['q']);
    await this.#run('index-compaction', (context) =>
      planLegacyCompaction(context, { allIndexes: false }),
    );
    await this.#run('cleanup-logs', (context) => planLogCleanup(context, this.#parameters));
  }

  async runFull(collectGarbage: PlanTask): Promise<void> {
    const packs = await Promise.allSettled([this.#lookAfterPacks(collectGarbage)]);
    // Run this even if a collection or deletion fails every day, because locks expire if not
    // extended.
    const locks = await Promise.allSettled([this.#extendLocks()]);
    if (packs[0].status === 'rejected') throw packs[0].reason;
    if (this.#hasEpochs) {
      await this.#run('compact-single-epoch', planSingleEpochCompaction, TAKES_ROOM);
      await this.#run('advance-epoch', planEpochAdvance);
      await this.#run('generate-epoch-range-index', planRangeCompaction, TAKES_ROOM);
      await this.#run('cleanup-epoch-markers', planMarkerCleanup);
      await this.#run('delete-superseded-epoch-indexes', (context) =>
        planSupersededIndexDeletion(context, this.#late),
      );
    }
    await this.#run('cleanup-logs', (context) => planLogCleanup(context, this.#parameters));
    // Not in the schedule, because Kopia has no such task.
    const unfinished = await this.#carryOut(planUnfinishedPutCleanup(this.#context));
    if (unfinished) this.reports.push({ task: 'cleanup-unfinished-puts', stats: unfinished.data });
    // Throw this last. Blobs may refuse until their lock ends, and index tasks must run meanwhile.
    if (locks[0].status === 'rejected') throw locks[0].reason;
  }

  async #lookAfterPacks(collectGarbage: PlanTask): Promise<void> {
    await this.#adoptLate('all');
    await this.#restoreDeletions();
    await this.#run('snapshot-gc', collectGarbage);
    const dropNs = this.#safeDropTime();
    // A watermark hides entries up to its second. The legacy compaction drops only older entries.
    const limit = dropNs === undefined ? -1 : unixSeconds(dropNs) - (this.#hasEpochs ? 0 : 1);
    const isDropped = ({ deleted, timestampSeconds }: IndexEntry): boolean =>
      deleted && timestampSeconds <= limit;
    if (this.#mayRewrite('full-rewrite-contents')) {
      const plan: PlanTask = (context) => planPackRewrite(context, ['p', 'q'], { isDropped });
      await this.#run('full-rewrite-contents', plan, TAKES_ROOM);
    } else {
      this.#skip(
        'full-rewrite-contents',
        'the packs of the last rewrite have not been deleted yet',
      );
    }
    await this.#dropDeleted(dropNs);
    await this.#deletePacks('full-delete-blobs', ['p', 'q', 's']);
  }

  async #extendLocks(): Promise<void> {
    if (!this.#parameters.extendObjectLocks) return;
    const { storage, format } = this.#context.repository;
    const task = 'extend-blob-retention-time';
    if (!storage.hasObjectLock) this.#skip(task, 'this storage has no object lock');
    else if (!format.retention) this.#skip(task, 'the repository has no retention period');
    else await this.#run(task, planLockExtension);
  }

  /** Not in the schedule, because Kopia has no such task. */
  async #adoptLate(what: AdoptedEntries): Promise<void> {
    if (!this.#hasEpochs || this.#dryRun) return;
    this.#late = await (await planLateAdoption(this.#context, what)).apply();
    const { adopted, spent } = this.#late;
    if (adopted.size + spent.size === 0) return;
    const data = { adoptedBlobCount: adopted.size, uselessBlobCount: spent.size };
    this.reports.push({ task: 'adopt-late-indexes', stats: data });
    // Adopted blobs may contain manifests.
    this.#context.repository.manifests.invalidate();
  }

  /** Run this before the collection, which keeps contents of manifests. Not in the schedule. */
  async #restoreDeletions(): Promise<void> {
    const { repository, logger } = this.#context;
    if (this.#dryRun) return;
    const restoredManifestCount = await repository.manifests.restoreDeletions();
    if (restoredManifestCount === 0) return;
    this.reports.push({ task: 'restore-manifest-deletions', stats: { restoredManifestCount } });
    const text =
      'deleted manifests came back when two clients merged them at once; deleting them again';
    logger.warn({ manifests: restoredManifestCount }, text);
  }

  /** Why this run must not delete: other clients may still use an older index. */
  get #adoptedReason(): string | undefined {
    if (this.#late.adopted.size === 0) return undefined;
    return 'late index blobs were rewritten in this run: the next run goes on';
  }

  async #dropDeleted(untilNs: Nanoseconds | undefined): Promise<void> {
    const task = 'full-drop-deleted-content';
    this.#livePacks = packsInIndex(this.#context.repository, { ofDeleted: false });
    const lastFailed = ['full-delete-blobs', 'delete-superseded-epoch-indexes'].some(
      (each) => this.#schedule.runs.get(each)?.[0]?.success === false,
    );
    if (lastFailed) {
      this.#skip(
        task,
        'the last run refused to delete anything: what is marked as deleted stays in the index',
      );
      return;
    }
    if (this.#adoptedReason !== undefined) {
      this.#skip(task, this.#adoptedReason);
      return;
    }
    if (untilNs === undefined) {
      this.#skip(task, 'two garbage collections with enough time between them must come first');
      return;
    }
    await this.#run(task, (context) =>
      this.#hasEpochs
        ? planWatermark(context, untilNs)
        : planLegacyCompaction(context, { allIndexes: true, dropDeletedBeforeNs: untilNs }),
    );
    // Later tasks must see the new watermark or index.
    if (!this.#dryRun) await this.#context.repository.contents.refresh();
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
      planPackDeletion(context, { prefixes, earlierRowCount, kept }),
    );
  }

  /** Whether the packs of the last rewrite are deleted. Only then may the next one run. */
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

  /** Applies a plan, or counts it in a dry run. */
  async #carryOut(plan: TaskPlan): Promise<TaskStats | undefined> {
    return this.#dryRun ? plan.count() : plan.apply();
  }

  async #run(task: string, makePlan: PlanTask, { takesRoom = false } = {}): Promise<void> {
    const { repository, signal, logger, progress } = this.#context;
    signal.throwIfAborted();
    progress?.begin(task);
    const startNs = repository.clock.nowNs();
    try {
      const plan = await makePlan(this.#context);
      const stats = plan && (await this.#carryOut(plan));
      this.reports.push({ task, ...(stats && { stats: stats.data }) });
      const extra = stats ? [{ kind: stats.kind, data: stats.data }] : undefined;
      const endNs = repository.clock.nowNs();
      await this.#record(task, { startNs, endNs, success: true, extra });
    } catch (error) {
      const isSkipped = takesRoom && isCode(error, 'STORAGE_FULL');
      if (!isSkipped) logger.error({ task, error: messageOf(error) }, 'maintenance task failed');
      const endNs = repository.clock.nowNs();
      const failed = { startNs, endNs, success: false, error: messageOf(error) };
      // Report the task's failure, not a failure to record it.
      await this.#record(task, failed).catch(() => undefined);
      if (!isSkipped) throw error;
      this.#skip(task, 'the storage has no room left: the next run tries again');
    }
  }

  async #record(task: string, run: TaskRun): Promise<void> {
    if (this.#dryRun) return;
    this.#schedule.runs.set(task, [run, ...(this.#schedule.runs.get(task) ?? [])]);
    await putSchedule(this.#context.repository, this.#schedule);
  }
}

/** Kopia's defaults for missing parameters (repo/maintenance/cleanup_logs.go). */
const DEFAULTS = { maxTotalSize: 2 ** 30, maxCount: 10_000, maxAge: 30 * 24 * 3600 * 1e9 };

/** Deletes Kopia's oldest log blobs beyond the limits of size, count and age. */
async function planLogCleanup(
  { repository, signal }: TaskContext,
  parameters: MaintenanceParameters,
): Promise<TaskPlan> {
  const { maxTotalSize, maxCount, maxAge } = parameters.logRetention;
  const limits = {
    bytes: maxTotalSize || DEFAULTS.maxTotalSize,
    count: maxCount || DEFAULTS.maxCount,
    ageNs: BigInt(maxAge || DEFAULTS.maxAge),
  };
  const logs = await Array.fromAsync(repository.storage.listBlobs('_'));
  logs.sort((a, b) => (a.timestampNs > b.timestampNs ? -1 : 1));
  const now = repository.clock.nowNs();
  let bytes = 0;
  const doomed: BlobMetadata[] = [];
  logs.forEach((log, position) => {
    bytes += log.lengthBytes;
    const isKept =
      bytes <= limits.bytes && position < limits.count && now - log.timestampNs <= limits.ageNs;
    if (!isKept) doomed.push(log);
  });
  const stats = (deleted: readonly BlobMetadata[]): TaskStats => ({
    kind: 'cleanupLogsStats',
    data: {
      toDeleteBlobCount: doomed.length,
      toDeleteBlobSize: bytesOf(doomed),
      deletedBlobCount: deleted.length,
      deletedBlobSize: bytesOf(deleted),
      retainedBlobCount: logs.length - doomed.length,
      retainedBlobSize: bytesOf(logs) - bytesOf(doomed),
    },
  });
  return {
    count: () => stats([]),
    apply: async () => {
      for (const { id } of doomed) {
        signal.throwIfAborted();
        await repository.storage.deleteBlob(id);
      }
      return stats(doomed);
    },
  };
}

const bytesOf = (blobs: readonly BlobMetadata[]): number =>
  blobs.reduce((total, { lengthBytes }) => total + lengthBytes, 0);

/** Our choice: a put takes seconds, but one hanging at a file server may take a weekend. */
const UNFINISHED_AGE_NS = 7n * 24n * HOUR_NS;

/**
 * Removes the remains of killed puts from the storage. Kopia never does. Returns no statistics if
 * there are none. Remains only take space, so a failure is logged and maintenance continues. The
 * storage finds and removes in one step, so the plan holds only a time limit.
 */
function planUnfinishedPutCleanup(context: TaskContext): TaskPlan {
  const beforeNs = context.startNs - UNFINISHED_AGE_NS;
  return {
    count: () => cleanUp(context, { beforeNs, dryRun: true }),
    apply: () => cleanUp(context, { beforeNs, dryRun: false }),
  };
}

async function cleanUp(
  { repository, signal, logger }: TaskContext,
  options: UnfinishedPutsOptions,
): Promise<TaskStats | undefined> {
  try {
    const { storage } = repository;
    const found = await storage.removeUnfinishedPuts?.({ ...options, signal });
    if (!found?.count) return undefined;
    return {
      kind: 'cleanupUnfinishedPutsStats',
      data: {
        toDeleteFileCount: found.count,
        toDeleteFileSize: found.lengthBytes,
        deletedFileCount: options.dryRun ? 0 : found.count,
      },
    };
  } catch (error) {
    signal.throwIfAborted();
    logger.warn({ error: messageOf(error) }, 'could not remove what interrupted puts left behind');
    return undefined;
  }
}
