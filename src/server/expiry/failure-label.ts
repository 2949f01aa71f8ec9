import { type Nanoseconds, parseGoTime } from '../../base/index.ts';
import { type Backup, type BackupStorageLocation, hasHadRun } from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';
import { neverBegan } from '../deletion/ownership.ts';

/** Velero's label on an expired Backup that cannot be deleted. The last value is of 1.19. */
export const FAILURE_LABEL = 'velero.io/gc-failure';
export type FailureReason = 'BSLNotFound' | 'BSLCannotGet' | 'BSLReadOnly' | 'BSLUnavailable';

/**
 * Annotation on a Backup that was synced after its expiration; the value is that expiration. A
 * writer of the bucket can store an expired backup, so the clock must not delete it. A person can
 * change the expiration, and the clock deletes it again.
 */
export const EXPIRED_AT_SYNC = 'longshore.io/expired-at-sync';

/** The fields of an expired Backup that are kept: there may be ten thousand. */
export interface Expired {
  readonly name: string;
  readonly uid: string;
  readonly location: string;
  readonly failure: string | undefined;
  /** Whether it exists only in the cluster, without files. */
  readonly neverBegan: boolean;
}

/**
 * Whether the backup has expired. A running backup does not count, because its deletion would
 * cancel it. An unreadable expiration does not count. A backup whose deletion has begun counts
 * again.
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

/** Whether the sync took it for expired by a clock that was ahead. */
export function isNotedByWrongClock(backup: Backup, nowNs: Nanoseconds): boolean {
  return hadExpiredAtSync(backup) && (expirationOf(backup) ?? 0n) > nowNs;
}

/** Whether its expiration is readable and over. */
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

/** Why nothing can be deleted in a location; undefined if deletions are possible. */
export function failureOf(location: BackupStorageLocation | undefined): FailureReason | undefined {
  if (!location) return 'BSLNotFound';
  if (location.status?.phase !== 'Available') return 'BSLUnavailable';
  return location.spec?.accessMode === 'ReadOnly' ? 'BSLReadOnly' : undefined;
}
