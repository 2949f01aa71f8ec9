import { frequencyMsOf } from '../locations/validation-plan.ts';

export interface SyncTimes {
  /** The location's own `backupSyncPeriod`, a Go duration. */
  readonly period: string | null | undefined;
  /** Used if the location has none, or an invalid one. */
  readonly serverPeriodMs: number;
  /** RFC 3339. */
  readonly lastSyncedTime: string | null | undefined;
  readonly nowMs: number;
}

/** Used for a server period of 0. Velero's shortest period. */
const PERIOD_MS_MIN = 60_000;
/** Tolerance for times in the future: times are whole seconds, and clocks differ. Our choice. */
const AHEAD_MS = 2000;

/** Whether the location is never synced (Velero: backup_sync_controller.go, locationFilterFunc). */
export const isNeverSynced = (period: string | null | undefined): boolean =>
  frequencyMsOf(period) === 0;

/**
 * Milliseconds until the next sync: 0 if it is due, Infinity if the location's own period is 0. A
 * last sync in the future comes from a wrong clock, and delays nothing.
 */
export function restUntilSync({
  period,
  serverPeriodMs,
  lastSyncedTime,
  nowMs,
}: SyncTimes): number {
  const own = frequencyMsOf(period);
  if (own === 0) return Infinity;
  const lastMs = Date.parse(lastSyncedTime ?? '');
  if (Number.isNaN(lastMs) || lastMs > nowMs + AHEAD_MS) return 0;
  const periodMs = own ?? (serverPeriodMs > 0 ? serverPeriodMs : PERIOD_MS_MIN);
  return Math.max(0, lastMs + periodMs - nowMs);
}
