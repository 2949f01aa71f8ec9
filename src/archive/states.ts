import { type Nanoseconds, parseGoTime } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { hasEnded, isFinalizing, isWaiting } from '../kube/index.ts';
import type { StoredBackup } from './files.ts';
import { foreignFolders } from './layout.ts';

/** Whether nothing more is written of a backup. */
export const isFinal = ({ status }: Pick<StoredBackup, 'status'>): boolean =>
  hasEnded(status?.phase);

/**
 * What a cluster that finds a backup in its location takes it for. `abandoned`: nobody finished it
 * before it expired, so it is made known as partially failed, and can then be deleted.
 * `unfinished`: it is left alone.
 */
export function standingOf(
  { status = {} }: StoredBackup,
  nowNs: Nanoseconds,
): 'final' | 'abandoned' | 'unfinished' {
  const { phase = '', expiration } = status;
  // Velero: pkg/controller/backup_sync_controller.go (v1.18.3). A backup in another phase is
  // somebody's work.
  if (hasEnded(phase)) return 'final';
  const isAfterRun = isWaiting(phase) || isFinalizing(phase);
  if (!isAfterRun || typeof expiration !== 'string') return 'unfinished';
  return parseGoTime(expiration) < nowNs ? 'abandoned' : 'unfinished';
}

/** A Backup, of the cluster or as it is stored. */
export interface AnyBackup {
  readonly metadata: { readonly name: string; readonly uid?: string | undefined };
  readonly status?: unknown;
}

/**
 * Whether stored files are those of a Backup of the cluster. A Backup that was taken over from a
 * bucket has another UID here, and the status that is stored. Its start alone does not tell.
 * Schedules of two clusters begin backups of one name in the same second, and the second backup
 * fails.
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

/** Also where neither is there. */
const isSameTime = (one: string | null | undefined, other: string | null | undefined): boolean =>
  (one ?? '') === (other ?? '') || Date.parse(one ?? '') === Date.parse(other ?? '');

/**
 * What is wrong with a location as Velero says it: folders that are not Velero's; undefined where
 * nothing is.
 */
export async function locationProblem(
  bucket: Bucket,
  options: SignalOptions = {},
): Promise<string | undefined> {
  return (await foreignFolders(bucket.listFolders('', options)))?.text;
}
