import { frequencyMsOf } from '../locations/validation-plan.ts';

export interface SyncTimes {
  /** The location's own `backupSyncPeriod`, as Go writes durations. */
  readonly period: string | null | undefined;
  /** Of the server, where the location has none or one that cannot be used. */
  readonly serverPeriodMs: number;
  /** RFC 3339. */
  readonly lastSyncedTime: string | null | undefined;
  readonly nowMs: number;
}

/** A server that is told 0 looks as often as Velero's does, which has no shorter time than this. */
const PERIOD_MS_MIN = 60_000;
/**
 * By which a time may be ahead of now, since it is written in whole seconds and clocks differ. Our
 * choice.
 */
const AHEAD_MS = 2000;

/**
 * Whether nobody wants to know what else is in a location (Velero: backup_sync_controller.go,
 * locationFilterFunc).
 */
export const isNeverSynced = (period: string | null | undefined): boolean =>
  frequencyMsOf(period) === 0;

/**
 * Milliseconds until a location is to be synced: 0 when that is due, Infinity when it never is, as
 * one whose own period is 0. A time in the future, which a clock has written that was wrong, delays
 * nothing.
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
