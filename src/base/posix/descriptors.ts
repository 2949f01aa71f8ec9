import { readFileSync } from 'node:fs';

/** Default limit of POSIX systems, used if the limit is unreadable. */
const USUAL_MAX = 1024;

let known: number | undefined;

/** Maximum open files and sockets: the soft limit. Node raises it to the hard limit. */
export function descriptorsMax(): number {
  known ??= readLimit();
  return known;
}

/** A share of the descriptors, at most `most`. All shares together leave room for threads. */
export const shareOfDescriptors = (share: number, most: number): number =>
  Math.max(1, Math.min(most, Math.floor(descriptorsMax() * share)));

function readLimit(): number {
  try {
    return parseLimit(readFileSync('/proc/self/limits', 'utf8'));
  } catch {
    return USUAL_MAX;
  }
}

/** Parses `/proc/PID/limits`. Its columns are name, soft limit, hard limit and unit. */
export function parseLimit(limits: string): number {
  const soft = /^Max open files +(\d+|unlimited) /m.exec(limits)?.[1];
  if (soft === undefined) return USUAL_MAX;
  return soft === 'unlimited' ? Infinity : Number(soft);
}
