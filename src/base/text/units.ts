import { lookup } from '../own-properties.ts';
const NANOSECONDS: Record<string, number> = {
  ns: 1,
  us: 1e3,
  µs: 1e3,
  ms: 1e6,
  s: 1e9,
  m: 60e9,
  h: 3600e9,
  d: 86400e9,
};

/** Go's time.Duration is an int64, at most 292 years. */
const DURATION_MAX = 2 ** 63;

/** Parses `60s`, `1.5h`, `10m0s` or `1d` to nanoseconds: Go's units, and days. */
export function parseDuration(text: string): bigint | undefined {
  if (text === '0') return 0n;
  if (!/^(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h|d))+$/.test(text)) return undefined;
  let total = 0;
  for (const [, number, unit] of text.matchAll(/(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)/g)) {
    total += Number(number) * (lookup(NANOSECONDS, unit ?? '') ?? 0);
  }
  return total < DURATION_MAX ? BigInt(Math.round(total)) : undefined;
}

/** Parses a size such as `256MiB`, `1GiB`, `500MB` or a number of bytes. Undefined if invalid. */
export function parseBytes(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?) ?(?:([KMGTP])(i?)B?|B)?$/i.exec(text);
  if (!match) return undefined;
  const [, number, unit = '', binary = ''] = match;
  const power = unit === '' ? 0 : 'KMGTP'.indexOf(unit.toUpperCase()) + 1;
  return Math.round(Number(number) * (binary === '' ? 1000 : 1024) ** power);
}

/** An age as in kubectl, such as 45s, 12m, 5h or 3d. */
export function ageText(seconds: number): string {
  if (seconds < 120) return `${Math.max(0, Math.floor(seconds))}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}
