import { MINUTE_NS, type Nanoseconds } from '../../../base/index.ts';
import type { BackupRepository } from '../../../kube/index.ts';
import { type Claim, type JobOutline, timeOf } from './outline.ts';

type BackupRepositoryStatus = NonNullable<BackupRepository['status']>;

export interface Situation {
  readonly claim: Claim | undefined;
  /** All of this repository that are there, whoever made them. */
  readonly jobs: readonly JobOutline[];
  readonly status: BackupRepositoryStatus | undefined;
  readonly frequencyNs: Nanoseconds;
  /** It is Ready, its location is there and may be written to. */
  readonly isStartable: boolean;
  /** The API server's time. */
  readonly nowNs: Nanoseconds;
}

export type Step =
  /** The claimed Job is there: its UID belongs into the claim. */
  | { readonly kind: 'note'; readonly job: JobOutline }
  /** The claim is there, and its Job was never seen. */
  | { readonly kind: 'create'; readonly name: string }
  /** The claim is of no use any more. */
  | { readonly kind: 'drop' }
  /** Ended Jobs that the history does not know; those of the claim end it. */
  | { readonly kind: 'record'; readonly jobs: readonly JobOutline[]; readonly endsClaim: boolean }
  /** The claimed Job was there, and is gone: somebody deleted it. */
  | { readonly kind: 'lost' }
  /** A Job is under way. */
  | { readonly kind: 'wait' }
  | { readonly kind: 'start' }
  /** Nothing to do for so long; for ever where nothing may be started. */
  | { readonly kind: 'rest'; readonly forNs: Nanoseconds | undefined };

/**
 * Kept in `status.recentMaintenance` (Velero: defaultMaintenanceStatusQueueLength,
 * pkg/controller/backup_repository_controller.go).
 */
export const HISTORY_MAX = 25;
/** Times in the future by more than this were written while a clock was ahead. Our choice. */
const AHEAD_NS = 10n * MINUTE_NS;
/**
 * After a failure; doubles with each further one, up to the repository's own interval. Velero's
 * resync period, 5 minutes.
 */
const RETRY_FIRST_NS = 5n * MINUTE_NS;

/** What is to be done about the maintenance of one repository. Decides only. */
export function planMaintenance(situation: Situation): Step {
  const { claim, jobs, isStartable } = situation;
  if (claim) {
    const job = jobs.find(({ name, uid }) => name === claim.name && uid === (claim.uid ?? uid));
    if (job && claim.uid === undefined) return { kind: 'note', job };
    if (job) return job.end ? { kind: 'record', jobs: [job], endsClaim: true } : { kind: 'wait' };
    if (claim.uid !== undefined) return { kind: 'lost' };
    return isStartable ? { kind: 'create', name: claim.name } : { kind: 'drop' };
  }
  const unknown = jobs.filter((job) => isForeignAndUnknown(job, situation.status));
  if (unknown.length > 0) return { kind: 'record', jobs: unknown, endsClaim: false };
  // Velero's server runs it, or a late one of ours is about to see that it is not named.
  if (jobs.some(({ end }) => end === undefined)) return { kind: 'wait' };
  if (!isStartable) return { kind: 'rest', forNs: undefined };
  const dueNs = dueTimeNs(situation);
  return dueNs <= situation.nowNs
    ? { kind: 'start' }
    : { kind: 'rest', forNs: dueNs - situation.nowNs };
}

/**
 * Ended while nobody was there to record it. Our own are recorded by their claim, and those without
 * one have done nothing.
 */
function isForeignAndUnknown(job: JobOutline, status: BackupRepositoryStatus | undefined): boolean {
  if (job.isOurs || !job.end) return false;
  const starts = (status?.recentMaintenance ?? []).map(({ startTimestamp }) =>
    timeOf(startTimestamp),
  );
  if (starts.includes(job.createdNs)) return false;
  // Older ones have been known, and have made room.
  const [oldest] = starts;
  const isFull = starts.length >= HISTORY_MAX;
  return !isFull || oldest === undefined || job.createdNs > oldest;
}

/**
 * When maintenance is due: an interval after the last success, and after failures not before a
 * while has passed since the last one.
 */
export function dueTimeNs({
  status,
  frequencyNs,
  nowNs,
}: Pick<Situation, 'status' | 'frequencyNs' | 'nowNs'>): Nanoseconds {
  const inPast = (text: string | null | undefined): Nanoseconds | undefined => {
    const ns = timeOf(text);
    return ns !== undefined && ns <= nowNs + AHEAD_NS ? ns : undefined;
  };
  const last = inPast(status?.lastMaintenanceTime);
  const dueNs = last === undefined ? 0n : last + frequencyNs;
  // One that a clock ahead has dated says nothing of when the last one was.
  const runs = (status?.recentMaintenance ?? []).filter(
    ({ startTimestamp }) => inPast(startTimestamp) !== undefined,
  );
  const failures = runs.length - 1 - runs.findLastIndex(({ result }) => result !== 'Failed');
  const attempt = inPast(runs.at(-1)?.startTimestamp);
  if (failures === 0 || attempt === undefined) return dueNs;
  const doubled = RETRY_FIRST_NS << BigInt(Math.min(failures - 1, 20));
  const again = attempt + (doubled < frequencyNs ? doubled : frequencyNs);
  return again > dueNs ? again : dueNs;
}

/** Seconds since maintenance was due; 0 while it is not. */
export function overdueSeconds(
  situation: Pick<Situation, 'status' | 'frequencyNs' | 'nowNs'>,
): number {
  const last = timeOf(situation.status?.lastMaintenanceTime);
  if (last === undefined) return 0;
  return Math.max(0, Number((situation.nowNs - last - situation.frequencyNs) / 1_000_000_000n));
}
