import { formatGoTime, GO_ZERO_TIME_NS, type Nanoseconds, toDate } from '../../base/index.ts';

export interface TimeFlags {
  utc?: boolean;
}

const two = (n: number): string => String(n).padStart(2, '0');

/** For people: `2026-11-23 06:05:04 +01:00`, or with `--utc` `2026-11-23 05:05:04 UTC`. */
export function timeText(ns: Nanoseconds, { utc }: TimeFlags = {}): string {
  if (ns === GO_ZERO_TIME_NS) return 'never';
  const date = toDate(ns);
  const minutes = utc === true ? 0 : -date.getTimezoneOffset();
  // Shifted so that the UTC methods return local time.
  const shifted = new Date(date.getTime() + minutes * 60_000);
  const year = shifted.getUTCFullYear();
  if (Number.isNaN(year) || year < 0 || year > 9999) return formatGoTime(ns);
  const text = shifted.toISOString().slice(0, 19).replace('T', ' ');
  if (minutes === 0) return `${text} UTC`;
  const away = Math.abs(Math.round(minutes));
  return `${text} ${minutes < 0 ? '-' : '+'}${two(Math.floor(away / 60))}:${two(away % 60)}`;
}
