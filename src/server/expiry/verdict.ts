import { type Nanoseconds, parseGoTime } from '../../base/index.ts';
import { type Backup, type BackupStorageLocation, hasHadRun } from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';
import { neverBegan } from '../deletion/ownership.ts';

/**
 * Velero's label on a Backup that has expired and cannot be deleted, and its values; the last one
 * is of 1.19.
 */
export const FAILURE_LABEL = 'velero.io/gc-failure';
export type FailureReason = 'BSLNotFound' | 'BSLCannotGet' | 'BSLReadOnly' | 'BSLUnavailable';

/**
 * Annotation on a Backup that the sync created after its expiration: that expiration. A writer of
 * the bucket can store an expired backup, so the clock must not delete it. A person can change the
 * expiration, and the clock deletes it again.
 */
export const EXPIRED_AT_SYNC = 'longshore.io/expired-at-sync';

/** What is kept of an expired Backup: there may be ten thousand. */
export interface Expired {
  readonly name: string;
  readonly uid: string;
  readonly location: string;
  readonly failure: string | undefined;
  /** Nothing of it is anywhere but in the cluster. */
  readonly neverBegan: boolean;
}

/**
 * Whether its time is over. One that is still made is not deleted by the clock: it would be
 * canceled. A time that nobody can read is none. Of one whose deletion was begun another try is
 * made.
 */
export function expiredIn(backup: Backup, nowNs: Nanoseconds): Expired[] {
  const { name, uid, labels, deletionTimestamp } = backup.metadata;
  const expiration = expirationOf(backup);
  if (expiration === undefined || expiration > nowNs || deletionTimestamp !== undefined) return [];
  if (hadExpiredAtSync(backup)) return [];
  const phase = phaseOf(backup);
  if (!hasHadRun(phase)) return [];
  const { storageLocation: location = '' } = (backup.spec as Backup['spec'] | undefined) ?? {};
  return [
    { name, uid, location, failure: labels?.[FAILURE_LABEL], neverBegan: neverBegan(backup) },
  ];
}

interface WithStatus {
  readonly status?: unknown;
}

const expirationIn = ({ status }: WithStatus): string =>
  (status as { expiration?: string | null } | undefined)?.expiration ?? '';

const hadExpiredAtSync = (backup: Backup): boolean =>
  backup.metadata.annotations?.[EXPIRED_AT_SYNC] === expirationIn(backup);

/** Whether the sync noted that it had expired, and it has not: the clock was ahead at that time. */
export function isNotedByWrongClock(backup: Backup, nowNs: Nanoseconds): boolean {
  return hadExpiredAtSync(backup) && (expirationOf(backup) ?? 0n) > nowNs;
}

/** Whether its expiration can be read, and is over. */
export const hasExpired = (status: unknown, nowNs: Nanoseconds): boolean =>
  (expirationOf({ status }) ?? nowNs) < nowNs;

function expirationOf(backup: WithStatus): Nanoseconds | undefined {
  const expiration = expirationIn(backup);
  if (expiration === '') return undefined;
  try {
    return parseGoTime(expiration);
  } catch {
    return undefined;
  }
}

/** Why nothing can be deleted in a location; undefined where it can. */
export function failureOf(location: BackupStorageLocation | undefined): FailureReason | undefined {
  if (!location) return 'BSLNotFound';
  if (location.status?.phase !== 'Available') return 'BSLUnavailable';
  return location.spec?.accessMode === 'ReadOnly' ? 'BSLReadOnly' : undefined;
}
