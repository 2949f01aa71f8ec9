import { readFileSync } from 'node:fs';

/** What POSIX systems allow when nobody said anything; where the limit cannot be read. */
const USUAL_MAX = 1024;

let known: number | undefined;

/**
 * Files and sockets that this process may have open at once. Node raises the soft limit to the hard
 * one when it starts, so the soft limit is what counts.
 */
export function descriptorsMax(): number {
  known ??= readLimit();
  return known;
}

/**
 * A part of them, but no more than is of use: the parts of all users together leave room for
 * threads and sockets.
 */
export const shareOfDescriptors = (share: number, most: number): number =>
  Math.max(1, Math.min(most, Math.floor(descriptorsMax() * share)));

function readLimit(): number {
  try {
    return parseLimit(readFileSync('/proc/self/limits', 'utf8'));
  } catch {
    return USUAL_MAX;
  }
}

/** From `/proc/PID/limits`: name, soft limit, hard limit, unit. */
export function parseLimit(limits: string): number {
  const soft = /^Max open files +(\d+|unlimited) /m.exec(limits)?.[1];
  if (soft === undefined) return USUAL_MAX;
  return soft === 'unlimited' ? Infinity : Number(soft);
}
