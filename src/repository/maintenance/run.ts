import { CodedError, type Logger, MINUTE_NS, type Nanoseconds } from '../../base/index.ts';
import { keepReserve } from '../../blob/index.ts';
import { CLOCK_SKEW_NS_MAX, clockSkew } from '../clock-skew.ts';
import { assertEpochsFollow, loadEpochState } from '../content/epoch-state.ts';
import { assertScratchRoom, freeScratchBytes } from '../index/scratch-file.ts';
import { clientName, type Repository } from '../repository.ts';
import { loadVerification } from '../verification/record.ts';
import { countedRows, Cycle, type TaskReport } from './cycle.ts';
import { assertNotShrunk } from './index-guard.ts';
import {
  claimMaintenance,
  defaultParameters,
  loadMaintenanceParameters,
  type MaintenanceParameters,
  notOwner,
} from './parameters.ts';
import { SAFETY, type SafetyLevel } from './safety.ts';
import { loadSchedule, putSchedule, SCHEDULE_BLOB, type Schedule } from './schedule.ts';
import type { PlanTask, TaskContext, TaskProgress } from './task.ts';

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
  /** What the scratch directory has left; tests say it. */
  readonly freeScratchBytes?: () => number;
  /** Plans to mark what no snapshot reaches; snapshots lie above this layer. */
  readonly collectGarbage: PlanTask;
}

export interface MaintenanceReport {
  /** `none`: nothing was due. */
  readonly mode: 'none' | 'quick' | 'full';
  readonly dryRun: boolean;
  readonly tasks: TaskReport[];
}

/**
 * Runs the cycle that is due or asked for. Throws `NOT_MAINTENANCE_OWNER`, `CLOCK_SKEW`,
 * `EPOCH_IMPLAUSIBLE`, `SCRATCH_FULL`. Refuses with `INDEX_UNREADABLE`, `DAMAGED_BLOB`,
 * `INDEX_SHRUNK`, `INDEX_INCOMPLETE` or `INDEX_HIDDEN` if contents in use may look unused. Throws
 * the failures of tasks too; the schedule keeps them.
 */
export async function runMaintenance(
  repository: Repository,
  options: MaintenanceOptions,
): Promise<MaintenanceReport> {
  const { contents, manifests } = repository;
  try {
    return await repository.freeRoom(() => run(repository, options));
  } finally {
    contents.requireIndex('whatever can be read');
    await manifests.requireAll(false);
  }
}

async function run(
  repository: Repository,
  options: MaintenanceOptions,
): Promise<MaintenanceReport> {
  let parameters: MaintenanceParameters = (await loadMaintenanceParameters(repository)) ?? {
    ...defaultParameters(repository.client),
    owner: '',
  };
  assertOwner(repository, parameters, options);
  // Contents and snapshots that only an unreadable blob names would look unused.
  repository.contents.requireIndex('all of it');
  await repository.manifests.requireAll(true);
  const schedule = await loadSchedule(repository);
  const mode = chooseMode(options.mode, parameters, schedule, repository.clock.nowNs());
  if (mode === 'none') return { mode, dryRun: options.dryRun, tasks: [] };
  const { scratchBytesMax, scratchBytesBesideMarksMax } = repository.contents;
  // The garbage collection of a full run holds marks while the index is read anew, and again.
  const scratchBytes = mode === 'full' ? scratchBytesBesideMarksMax : scratchBytesMax;
  if (scratchBytes > 0) {
    assertScratchRoom(scratchBytes, (options.freeScratchBytes ?? freeScratchBytes)());
  }
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
  // What is known to be damaged is not moved, and keeps nobody from the rest.
  repository.contents.damaged.addAll((await loadVerification(repository)).damaged);
  // Before the collection marks what an index without its newest blobs does not reach.
  assertNotShrunk(repository.contents.rowCount, countedRows(repository, schedule));
  // Merges the contents of manifests when they are many.
  if (!options.dryRun) await repository.flush();
  const { dryRun, signal, logger, progress } = options;
  const safety = SAFETY[options.safety];
  const context: TaskContext = { repository, safety, startNs, signal, logger, progress };
  const cycle = new Cycle({ context, parameters, schedule, dryRun });
  await (mode === 'full' ? cycle.runFull(options.collectGarbage) : cycle.runQuick());
  if (mode === 'full' && !dryRun) await keepReserveOf(repository);
  return { mode, dryRun: options.dryRun, tasks: cycle.reports };
}

/** Index entries of deletions take some 50 bytes for each content. */
const RESERVE_BYTES_PER_CONTENT = 64;
const RESERVE_BYTES_MIN = 512 << 10;
const RESERVE_BYTES_MAX = 64 << 20;

/**
 * Keeps as much room in the storage as it takes to delete all contents, so that a full one can be
 * freed.
 */
export async function keepReserveOf({ storage, contents, format }: Repository): Promise<void> {
  // Locked blobs cannot be freed.
  if (format.retention) return;
  const bytes = contents.contentCount * RESERVE_BYTES_PER_CONTENT;
  await keepReserve(storage, Math.min(RESERVE_BYTES_MAX, Math.max(RESERVE_BYTES_MIN, bytes)));
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
  // A full run books both from the same moment. One that is further away than that was paused by
  // Kopia's `maintenance set`, unless a run from when the clock was ahead explains it, and quick
  // ones have moved the other booking since.
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
 * Books the next runs, and learns the storage's time from the blob that says so. A run that cannot
 * begin is none: the booking before it comes back, so that nobody whose clock is right waits for
 * the next one.
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

/**
 * Before a claim: an owner whose clock is wrong cannot begin, and everybody else would leave it to
 * that one. Throws `CLOCK_SKEW`.
 */
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
  const text = `the clocks of this machine and of the storage differ by ${minutes} minutes: maintenance would not be safe`;
  throw new CodedError('CLOCK_SKEW', `${text}; correct the clock`);
}
