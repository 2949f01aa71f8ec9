import { parseDuration } from '../../base/index.ts';

export interface ValidationTimes {
  /** The location's own, as Go writes durations; of the server where it has none. */
  readonly frequency: string | null | undefined;
  readonly serverFrequencyMs: number;
  /** RFC 3339. */
  readonly lastValidationTime: string | null | undefined;
  readonly nowMs: number;
}

/**
 * By which a time may be ahead of now, since it is written in whole seconds and clocks differ. Our
 * choice.
 */
const AHEAD_MS = 2000;

/**
 * Milliseconds until a location is to be validated: 0 when that is due, Infinity when it never is.
 * As Velero decides it (internal/storage/storagelocation.go, IsReadyToValidate); but a time in the
 * future, which a clock has written that was wrong, delays nothing.
 */
export function restUntilValidation(times: ValidationTimes): number {
  const lastMs = Date.parse(times.lastValidationTime ?? '');
  // Each is validated once, whatever its frequency.
  if (Number.isNaN(lastMs)) return 0;
  const frequencyMs = frequencyMsOf(times.frequency) ?? times.serverFrequencyMs;
  if (frequencyMs === 0) return Infinity;
  if (lastMs > times.nowMs + AHEAD_MS) return 0;
  return Math.max(0, lastMs + frequencyMs - times.nowMs);
}

/**
 * Undefined for what the server's stands in for: nothing, what is negative, and what is no
 * duration.
 */
export function frequencyMsOf(text: string | null | undefined): number | undefined {
  if (text == null || text.startsWith('-')) return undefined;
  const ns = parseDuration(text.replace(/^\+/, ''));
  return ns === undefined ? undefined : Number(ns / 1_000_000n);
}
