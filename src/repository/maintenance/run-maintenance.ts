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
  /** Run even if another client owns maintenance. */
  readonly force: boolean;
  /** Only report the work to do. */
  readonly dryRun: boolean;
  readonly signal: AbortSignal;
  readonly logger: Logger;
  /** Updated as tasks run. */
  readonly progress?: TaskProgress | undefined;
  /** Free scratch space. Tests replace it. */
  readonly freeScratchBytes?: () => number;
  /** Plans to mark contents that no snapshot reaches. Snapshots are above this layer. */
  readonly collectGarbage: PlanTask;
}

export interface MaintenanceReport {
  /** `none` means that nothing was due. */
  readonly mode: 'none' | 'quick' | 'full';
  readonly dryRun: boolean;
  readonly tasks: TaskReport[];
}

/**
 * Runs the due or requested cycle. Throws `NOT_MAINTENANCE_OWNER`, `CLOCK_SKEW`,
 * `EPOCH_IMPLAUSIBLE`, `SCRATCH_FULL`. Throws `INDEX_UNREADABLE`, `DAMAGED_BLOB`, `INDEX_SHRUNK`,
 * `INDEX_INCOMPLETE` or `INDEX_HIDDEN` if contents in use may look unused. Also throws failures of
 * tasks, which the schedule records.
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
  // Contents and snapshots named only by an unreadable blob would look unused.
  repository.contents.requireIndex('all of it');
  await repository.manifests.requireAll(true);
  const schedule = await loadSchedule(repository);
  const mode = chooseMode(options.mode, parameters, schedule, repository.clock.nowNs());
  if (mode === 'none') return { mode, dryRun: options.dryRun, tasks: [] };
  const { scratchBytesMax, scratchBytesBesideMarksMax } = repository.contents;
  // In a full run, garbage collection holds marks while the index is read again, several times.
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
  // Known damage is not moved, and does not stop the work on other contents.
  repository.contents.damaged.addAll((await loadVerification(repository)).damaged);
  // Check before the collection. With missing index blobs, it would mark contents in use.
  assertNotShrunk(repository.contents.rowCount, countedRows(repository, schedule));
  // Merges manifest contents if there are many.
  if (!options.dryRun) await repository.flush();
  const { dryRun, signal, logger, progress } = options;
  const safety = SAFETY[options.safety];
  const context: TaskContext = { repository, safety, startNs, signal, logger, progress };
  const cycle = new Cycle({ context, parameters, schedule, dryRun });
  await (mode === 'full' ? cycle.runFull(options.collectGarbage) : cycle.runQuick());
  if (mode === 'full' && !dryRun) await keepReserveOf(repository);
  return { mode, dryRun: options.dryRun, tasks: cycle.reports };
}

/** An index entry of a deletion takes about 50 bytes. */
const RESERVE_BYTES_PER_CONTENT = 64;
const RESERVE_BYTES_MIN = 512 << 10;
const RESERVE_BYTES_MAX = 64 << 20;

/** Reserves enough storage to delete all contents, so that space can be freed on a full storage. */
export async function keepReserveOf({ storage, contents, format }: Repository): Promise<void> {
  // Locked blobs cannot be deleted.
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
  // Due, or further away than one interval because it was booked while the clock was ahead.
  const isDue = (nextNs: Nanoseconds, interval: number | bigint): boolean =>
    nowNs >= nextNs || nextNs > nowNs + BigInt(interval) + CLOCK_SKEW_NS_MAX;
  // A full run books both next runs from the same moment. If the next full run is further away,
  // Kopia's `maintenance set` paused it. Exception: the clock was ahead when it was booked, and
  // quick runs have moved the other booking since.
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
 * Books the next runs, and returns the storage's time from the booking's blob. If the run cannot
 * start, restores the previous booking, so that a client with the right clock need not wait.
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
    // Report the first failure, even if the booking stays.
    await putSchedule(repository, schedule).catch(() => undefined);
    throw error;
  }
}

/** The storage's time, which maintenance uses as its start. Throws `CLOCK_SKEW`. */
async function storageTime({ storage }: Repository, now: Nanoseconds): Promise<Nanoseconds> {
  const { timestampNs } = await storage.getMetadata(SCHEDULE_BLOB);
  assertSameTime(now, timestampNs);
  return timestampNs;
}

/**
 * Checks the clock before a claim. An owner with a wrong clock cannot run, and other clients would
 * leave maintenance to it. Throws `CLOCK_SKEW`.
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
