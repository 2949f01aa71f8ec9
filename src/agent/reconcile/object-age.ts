import type { Clock } from '../../base/index.ts';
import { millisecondsSince } from '../movement.ts';

/** Age of an object when first seen, and when that was; ms of `performance.now()`. */
export interface ObjectSighting {
  /** Id of the object. The age is of this object only. */
  readonly of: string;
  readonly ageMs: number;
  readonly atMs: number;
}

/**
 * Keeps the first sighting of an object. The API server's clock is used only then, because it may
 * be set, and each server has its own. `ageMsMax`: greatest possible age, if this process knows
 * one.
 */
export function sightingOf(
  known: ObjectSighting | undefined,
  of: string,
  clock: Clock,
  time: string | null | undefined,
  ageMsMax = Infinity,
): ObjectSighting {
  if (known?.of === of) return known;
  const ageMs = Math.max(0, Math.min(millisecondsSince(clock, time), ageMsMax));
  return { of, ageMs, atMs: performance.now() };
}

/** Age of the object in milliseconds, by this process's clock since the first sighting. */
export const ageMsOf = ({ ageMs, atMs }: ObjectSighting): number =>
  ageMs + performance.now() - atMs;
