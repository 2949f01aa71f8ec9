import { parseDuration } from '../../base/index.ts';

export interface ValidationTimes {
  /** The location's own frequency, a Go duration. */
  readonly frequency: string | null | undefined;
  readonly serverFrequencyMs: number;
  /** RFC 3339. */
  readonly lastValidationTime: string | null | undefined;
  readonly nowMs: number;
}

/** Tolerance for times in the future: times are whole seconds, and clocks differ. Our choice. */
const AHEAD_MS = 2000;

/**
 * Milliseconds until the next validation: 0 if it is due, Infinity if there is none. As in Velero
 * (internal/storage/storagelocation.go, IsReadyToValidate). A last validation in the future comes
 * from a wrong clock, and delays nothing.
 */
export function restUntilValidation(times: ValidationTimes): number {
  const lastMs = Date.parse(times.lastValidationTime ?? '');
  // The first validation ignores the frequency.
  if (Number.isNaN(lastMs)) return 0;
  const frequencyMs = frequencyMsOf(times.frequency) ?? times.serverFrequencyMs;
  if (frequencyMs === 0) return Infinity;
  if (lastMs > times.nowMs + AHEAD_MS) return 0;
  return Math.max(0, lastMs + frequencyMs - times.nowMs);
}

/**
 * Undefined if the server's frequency applies: for no value, a negative value, or an invalid one.
 */
export function frequencyMsOf(text: string | null | undefined): number | undefined {
  if (text == null || text.startsWith('-')) return undefined;
  const ns = parseDuration(text.replace(/^\+/, ''));
  return ns === undefined ? undefined : Number(ns / 1_000_000n);
}
