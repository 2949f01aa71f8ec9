import { MINUTE_NS, type Nanoseconds } from '../../../base/index.ts';
import type { BackupRepository } from '../../../kube/index.ts';
import { type Claim, type JobOutline, timeOf } from './job-outline.ts';

type BackupRepositoryStatus = NonNullable<BackupRepository['status']>;

export interface Situation {
  readonly claim: Claim | undefined;
  /** All existing Jobs of this repository, whoever created them. */
  readonly jobs: readonly JobOutline[];
  readonly status: BackupRepositoryStatus | undefined;
  readonly frequencyNs: Nanoseconds;
  /** Whether the repository is Ready and its location exists and is writable. */
  readonly isStartable: boolean;
  /** The API server's time. */
  readonly nowNs: Nanoseconds;
}

export type Step =
  /** The claimed Job exists: add its UID to the claim. */
  | { readonly kind: 'note'; readonly job: JobOutline }
  /** The claimed Job was never seen: create it. */
  | { readonly kind: 'create'; readonly name: string }
  /** The claim cannot be used: remove it. */
  | { readonly kind: 'drop' }
  /** Ended Jobs that the history lacks. `endsClaim`: the claimed Job is among them. */
  | { readonly kind: 'record'; readonly jobs: readonly JobOutline[]; readonly endsClaim: boolean }
  /** The claimed Job existed and was deleted. */
  | { readonly kind: 'lost' }
  /** A Job is running. */
  | { readonly kind: 'wait' }
  | { readonly kind: 'start' }
  /** No work until then. Undefined: nothing may be started. */
  | { readonly kind: 'rest'; readonly forNs: Nanoseconds | undefined };

/**
 * Length of `status.recentMaintenance` (Velero: defaultMaintenanceStatusQueueLength,
 * pkg/controller/backup_repository_controller.go).
 */
export const HISTORY_MAX = 25;
/** Later times were written while a clock was ahead. Our choice. */
const AHEAD_NS = 10n * MINUTE_NS;
/** Delay after a failure: Velero's resync period. Doubles up to the repository's own interval. */
const RETRY_FIRST_NS = 5n * MINUTE_NS;

/** Decides the next step of a repository's maintenance. A pure function. */
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
  // A Job of Velero's server, or a late Job of our own that will see that it is not named.
  if (jobs.some(({ end }) => end === undefined)) return { kind: 'wait' };
  if (!isStartable) return { kind: 'rest', forNs: undefined };
  const dueNs = dueTimeNs(situation);
  return dueNs <= situation.nowNs
    ? { kind: 'start' }
    : { kind: 'rest', forNs: dueNs - situation.nowNs };
}

/** Whether a Job of Velero's server ended unrecorded. Our own Jobs are recorded by claim. */
function isForeignAndUnknown(job: JobOutline, status: BackupRepositoryStatus | undefined): boolean {
  if (job.isOurs || !job.end) return false;
  const starts = (status?.recentMaintenance ?? []).map(({ startTimestamp }) =>
    timeOf(startTimestamp),
  );
  if (starts.includes(job.createdNs)) return false;
  // Older Jobs were recorded before, and left the full history.
  const [oldest] = starts;
  const isFull = starts.length >= HISTORY_MAX;
  return !isFull || oldest === undefined || job.createdNs > oldest;
}

/** When maintenance is due: one interval after the last success. Failures add a delay. */
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
  // Runs dated in the future do not count: a clock was ahead.
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

/** Seconds since maintenance was due; 0 if it is not due. */
export function overdueSeconds(
  situation: Pick<Situation, 'status' | 'frequencyNs' | 'nowNs'>,
): number {
  const last = timeOf(situation.status?.lastMaintenanceTime);
  if (last === undefined) return 0;
  return Math.max(0, Number((situation.nowNs - last - situation.frequencyNs) / 1_000_000_000n));
}
