import {
  CodedError,
  type Logger,
  messageOf,
  type Nanoseconds,
  MINUTE_NS,
  unixSeconds,
} from '../../base/index.ts';
import { CLOCK_SKEW_NS_MAX, clockSkew } from '../clock-skew.ts';
import { assertEpochsFollow, loadEpochState } from '../content/epoch-state.ts';
import type { IndexEntry } from '../index/entry.ts';
import { clientName, type Repository } from '../repository.ts';
import { cleanupLogs } from './cleanup-logs.ts';
import { extendObjectLocks } from './extend-locks.ts';
import { deleteUnreferencedPacks, livePacks, ROW_COUNT } from './delete-packs.ts';
import {
  advanceEpoch,
  cleanupMarkers,
  compactRange,
  compactSingleEpoch,
  deleteSupersededIndexes,
  putWatermark,
} from './epochs.ts';
import { assertNotShrunk } from './index-guard.ts';
import {
  type AdoptedEntries,
  adoptLateIndexes,
  type LateIndexes,
  NONE_LATE,
} from './late-indexes.ts';
import { compactLegacyIndexes } from './legacy-indexes.ts';
import {
  claimMaintenance,
  defaultParameters,
  loadMaintenanceParameters,
  type MaintenanceParameters,
  notOwner,
} from './parameters.ts';
import { rewriteShortPacks } from './rewrite-packs.ts';
import { SAFETY, type SafetyLevel } from './safety.ts';
import {
  loadSchedule,
  putSchedule,
  SCHEDULE_BLOB,
  type Schedule,
  type TaskRun,
} from './schedule.ts';
import type { TaskContext, TaskProgress, TaskStats } from './task.ts';
import { cleanUpUnfinishedPuts } from './unfinished-puts.ts';

export type MaintenanceMode = 'auto' | 'quick' | 'full';

export interface MaintenanceOptions {
  readonly mode: MaintenanceMode;
  readonly safety: SafetyLevel;
  /** Also when another client owns maintenance. */
  readonly force: boolean;
  /** Only say what would be done. */
  readonly dryRun: boolean;
  readonly signal: AbortSignal;
  readonly logger: Logger;
  /** Filled as tasks go on. */
  readonly progress?: TaskProgress | undefined;
  /** Marks what no snapshot reaches; snapshots lie above this layer. */
  readonly collectGarbage: (context: TaskContext) => Promise<TaskStats>;
}

export interface TaskReport {
  readonly task: string;
  readonly stats?: TaskStats['data'];
  /** Why it was not run. */
  readonly skipped?: string;
}

export interface MaintenanceReport {
  /** `none`: nothing was due. */
  readonly mode: 'none' | 'quick' | 'full';
  readonly dryRun: boolean;
  readonly tasks: TaskReport[];
}

/**
 * Runs the cycle that is due or asked for.
 * Throws `NOT_MAINTENANCE_OWNER`, `CLOCK_SKEW`, `EPOCH_IMPLAUSIBLE`, `INDEX_SHRUNK`, `INDEX_INCOMPLETE`, `INDEX_HIDDEN`, and what the
 * tasks throw; the schedule keeps the failure.
 */
export async function runMaintenance(
  repository: Repository,
  options: MaintenanceOptions,
): Promise<MaintenanceReport> {
  let parameters: MaintenanceParameters = (await loadMaintenanceParameters(repository)) ?? {
    ...defaultParameters(repository.client),
    owner: '',
  };
  assertOwner(repository, parameters, options);
  const schedule = await loadSchedule(repository);
  const mode = chooseMode(options.mode, parameters, schedule, repository.clock.nowNs());
  if (mode === 'none') return { mode, dryRun: options.dryRun, tasks: [] };
  if (parameters.owner === '' && !options.dryRun && !options.force) {
    await assertClockRight(repository);
    parameters = await claimMaintenance(repository, parameters);
  }
  if (repository.format.parameters.epochParameters.Enabled) {
    assertEpochsFollow(await loadEpochState(repository.storage));
  }
  const startNs = options.dryRun
    ? repository.clock.nowNs()
    : await announce(repository, parameters, schedule, mode);
  await repository.contents.refresh();
  repository.manifests.invalidate();
  // Before the collection marks what an index without its newest blobs does not reach.
  assertNotShrunk(repository.contents.rowCount, countedRows(repository, schedule));
  // Merges the contents of manifests when they are many.
  if (!options.dryRun) await repository.flush();
  const cycle = new Cycle(
    {
      repository,
      safety: SAFETY[options.safety],
      apply: !options.dryRun,
      startNs,
      signal: options.signal,
      logger: options.logger,
      progress: options.progress,
    },
    parameters,
    schedule,
  );
  await (mode === 'full' ? cycle.runFull(options.collectGarbage) : cycle.runQuick());
  return { mode, dryRun: options.dryRun, tasks: cycle.reports };
}

function assertOwner(
  repository: Repository,
  { owner }: MaintenanceParameters,
  { force, dryRun }: MaintenanceOptions,
): void {
  if (force || dryRun || owner === '' || owner === clientName(repository.client)) return;
  throw notOwner(repository, owner);
}

function chooseMode(
  asked: MaintenanceMode,
  { full, quick }: MaintenanceParameters,
  schedule: Schedule,
  nowNs: Nanoseconds,
): 'none' | 'quick' | 'full' {
  if (asked !== 'auto') return asked;
  const { nextFullNs, nextQuickNs } = schedule;
  // Further away than an interval: booked while the clock was ahead.
  const isDue = (nextNs: Nanoseconds, interval: number | bigint): boolean =>
    nowNs >= nextNs || nextNs > nowNs + BigInt(interval) + CLOCK_SKEW_NS_MAX;
  // A full run books both from the same moment. One that is further away than that was paused by Kopia's `maintenance set`,
  // unless a run from when the clock was ahead explains it, and quick ones have moved the other booking since.
  const apartNs = BigInt(full.interval) - BigInt(quick.interval);
  const bookedNs = nextFullNs - BigInt(full.interval) - CLOCK_SKEW_NS_MAX;
  const isOfRun = [...schedule.runs.values()].some((runs) =>
    runs.some(({ startNs: ns }) => ns > nowNs && ns >= bookedNs && ns < nextFullNs),
  );
  const isPaused =
    nowNs < nextFullNs &&
    !isOfRun &&
    clockSkew(nextFullNs - nextQuickNs, apartNs) > CLOCK_SKEW_NS_MAX;
  if (full.enabled && !isPaused && isDue(nextFullNs, full.interval)) return 'full';
  return quick.enabled && isDue(nextQuickNs, quick.interval) ? 'quick' : 'none';
}

/**
 * Books the next runs, and learns the storage's time from the blob that says so. A run that cannot begin is none: the
 * booking before it comes back, so that nobody whose clock is right waits for the next one.
 */
async function announce(
  repository: Repository,
  { full, quick }: MaintenanceParameters,
  schedule: Schedule,
  mode: 'quick' | 'full',
): Promise<Nanoseconds> {
  const { nextQuickNs, nextFullNs } = schedule;
  const now = repository.clock.nowNs();
  schedule.nextQuickNs = now + BigInt(quick.interval);
  if (mode === 'full') schedule.nextFullNs = now + BigInt(full.interval);
  await putSchedule(repository, schedule);
  try {
    return await storageTime(repository, now);
  } catch (error) {
    Object.assign(schedule, { nextQuickNs, nextFullNs });
    // The failure itself matters more than a booking that stays.
    await putSchedule(repository, schedule).catch(() => undefined);
    throw error;
  }
}

/** By the storage's clock: that is what maintenance calls its start. Throws `CLOCK_SKEW`. */
async function storageTime({ storage }: Repository, now: Nanoseconds): Promise<Nanoseconds> {
  const { timestampNs } = await storage.getMetadata(SCHEDULE_BLOB);
  assertSameTime(now, timestampNs);
  return timestampNs;
}

/** Before a claim: an owner whose clock is wrong cannot begin, and everybody else would leave it to that one. Throws `CLOCK_SKEW`. */
async function assertClockRight({ contents, clock }: Repository): Promise<void> {
  const now = clock.nowNs();
  const storageNs = await contents.storageTime();
  await contents.flush();
  assertSameTime(now, storageNs);
}

function assertSameTime(now: Nanoseconds, storageNs: Nanoseconds): void {
  const skew = clockSkew(now, storageNs);
  if (skew <= CLOCK_SKEW_NS_MAX) return;
  const minutes = Number(skew / MINUTE_NS);
  const text = `the clock here and the storage's differ by ${minutes} minutes: maintenance would be unsafe`;
  throw new CodedError('CLOCK_SKEW', `${text}; set the clock right`);
}

/** How many contents the index had when packs were deleted last; undefined when that was not by us. */
function countedRows(repository: Repository, schedule: Schedule): number | undefined {
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
class Cycle {
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

  async runFull(collectGarbage: MaintenanceOptions['collectGarbage']): Promise<void> {
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

  async #lookAfterPacks(collectGarbage: MaintenanceOptions['collectGarbage']): Promise<void> {
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
