import { type Nanoseconds, parseDuration } from '../../base/index.ts';

/** Go's durations only, in nanoseconds: Velero's own programs could not read the Backup with any other. Undefined for what is none. */
export function goDurationNs(text: string | undefined): Nanoseconds | undefined {
  if (text === undefined || text.includes('d')) return undefined;
  const isNegative = text.startsWith('-');
  const ns = parseDuration(isNegative ? text.slice(1) : text);
  if (ns === undefined) return undefined;
  return isNegative ? -ns : ns;
}
