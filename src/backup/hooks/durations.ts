import { type Nanoseconds, parseDuration } from '../../base/index.ts';

/**
 * Parses Go durations only, in nanoseconds: Velero's programs could not read a Backup with other
 * ones. Undefined if invalid.
 */
export function goDurationNs(text: string | undefined): Nanoseconds | undefined {
  if (text === undefined || text.includes('d')) return undefined;
  const isNegative = text.startsWith('-');
  const ns = parseDuration(isNegative ? text.slice(1) : text);
  if (ns === undefined) return undefined;
  return isNegative ? -ns : ns;
}

/** Go's format: `720h0m0s`, `1m30s`, `1.5s`, `250ms`, `0s`. Go: time.Duration.String. */
export function goDurationText(ns: Nanoseconds): string {
  if (ns < 0n) return `-${goDurationText(-ns)}`;
  if (ns === 0n) return '0s';
  const small = ([unit, size]: readonly [string, bigint]): string => `${decimal(ns, size)}${unit}`;
  if (ns < 1000n) return small(['ns', 1n]);
  if (ns < 1_000_000n) return small(['µs', 1000n]);
  if (ns < 1_000_000_000n) return small(['ms', 1_000_000n]);
  const minutes = ns / 60_000_000_000n;
  const seconds = `${decimal(ns % 60_000_000_000n, 1_000_000_000n)}s`;
  if (minutes === 0n) return seconds;
  return minutes < 60n ? `${minutes}m${seconds}` : `${minutes / 60n}h${minutes % 60n}m${seconds}`;
}

function decimal(value: bigint, unit: bigint): string {
  const rest = value % unit;
  if (rest === 0n) return String(value / unit);
  const digits = String(rest).padStart(String(unit).length - 1, '0');
  return `${value / unit}.${digits.replace(/0+$/, '')}`;
}
