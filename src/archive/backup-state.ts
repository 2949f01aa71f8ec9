import { type Nanoseconds, parseGoTime } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { hasEnded, isFinalizing, isWaiting } from '../kube/index.ts';
import type { StoredBackup } from './file-schemas.ts';
import { foreignFolders } from './layout.ts';

/** Whether no program writes to the backup any more. */
export const isFinal = ({ status }: Pick<StoredBackup, 'status'>): boolean =>
  hasEnded(status?.phase);

/**
 * The state of a backup in a bucket, for a cluster that finds it. `abandoned`: it expired before it
 * was finished; it is imported as partially failed, and can then be deleted. `unfinished`: it is
 * skipped.
 */
export function standingOf(
  { status = {} }: StoredBackup,
  nowNs: Nanoseconds,
): 'final' | 'abandoned' | 'unfinished' {
  const { phase = '', expiration } = status;
  // Velero: pkg/controller/backup_sync_controller.go (v1.18.3). Other phases are in progress.
  if (hasEnded(phase)) return 'final';
  const isAfterRun = isWaiting(phase) || isFinalizing(phase);
  if (!isAfterRun || typeof expiration !== 'string') return 'unfinished';
  return parseGoTime(expiration) < nowNs ? 'abandoned' : 'unfinished';
}

/** A Backup in the cluster or in a bucket. */
export interface AnyBackup {
  readonly metadata: { readonly name: string; readonly uid?: string | undefined };
  readonly status?: unknown;
}

/**
 * Whether stored files belong to a Backup of the cluster. A Backup imported from a bucket has
 * another UID and the stored status. The start time is not enough: Schedules of two clusters begin
 * backups of one name in the same second, and the second one fails.
 */
export function isStoredOf(backup: AnyBackup, stored: AnyBackup): boolean {
  if (stored.metadata.uid === backup.metadata.uid) return true;
  const [here, there] = [endOf(backup), endOf(stored)];
  return (
    isSameTime(here.startTimestamp, there.startTimestamp) &&
    isSameTime(here.completionTimestamp, there.completionTimestamp) &&
    (here.failureReason ?? '') === (there.failureReason ?? '')
  );
}

interface BackupEnd {
  readonly startTimestamp?: string | null;
  readonly completionTimestamp?: string | null;
  readonly failureReason?: string;
}

const endOf = ({ status }: AnyBackup): BackupEnd => status ?? {};

/** Also true if both are missing. */
const isSameTime = (one: string | null | undefined, other: string | null | undefined): boolean =>
  (one ?? '') === (other ?? '') || Date.parse(one ?? '') === Date.parse(other ?? '');

/** Velero's sentence about foreign folders in a location, or undefined. */
export async function locationProblem(
  bucket: Bucket,
  options: SignalOptions = {},
): Promise<string | undefined> {
  return (await foreignFolders(bucket.listFolders('', options)))?.text;
}
