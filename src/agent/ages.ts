import type { Clock } from '../base/index.ts';
import { millisecondsSince } from './movement.ts';

/**
 * How old something was when this process first saw it, and when that was; milliseconds of
 * `performance.now()`.
 */
export interface Sighting {
  /** What was seen: another thing has an age of its own. */
  readonly of: string;
  readonly ageMs: number;
  readonly atMs: number;
}

/**
 * The first sighting of a thing stays. The API server's clock is asked then, and never again: it
 * may be set, and each server of a cluster has its own. `ageMsMax`: where this process knows that
 * it cannot be older.
 */
export function sightingOf(
  known: Sighting | undefined,
  of: string,
  clock: Clock,
  time: string | null | undefined,
  ageMsMax = Infinity,
): Sighting {
  if (known?.of === of) return known;
  const ageMs = Math.max(0, Math.min(millisecondsSince(clock, time), ageMsMax));
  return { of, ageMs, atMs: performance.now() };
}

/** Milliseconds that the thing is old now, by this process's own clock since it was first seen. */
export const ageMsOf = ({ ageMs, atMs }: Sighting): number => ageMs + performance.now() - atMs;
