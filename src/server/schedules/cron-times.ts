import { goDurationNs } from '../../backup/index.ts';

const MONTHS = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
const DAYS = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'];

interface Field {
  readonly least: number;
  readonly most: number;
  readonly names?: readonly string[];
}

const FIELDS: readonly Field[] = [
  { least: 0, most: 59 },
  { least: 0, most: 23 },
  { least: 1, most: 31 },
  { least: 1, most: 12, names: MONTHS },
  // 7 is Sunday too.
  { least: 0, most: 7, names: DAYS },
];
const WORDS: Readonly<Record<string, string>> = {
  '@yearly': '0 0 1 1 *',
  '@annually': '0 0 1 1 *',
  '@monthly': '0 0 1 * *',
  '@weekly': '0 0 * * 0',
  '@daily': '0 0 * * *',
  '@midnight': '0 0 * * *',
  '@hourly': '0 * * * *',
};
const TEXT_CHARS_MAX = 1024;
const DAY_MS = 86_400_000;
/** As far ahead as Velero's library looks. */
const DAYS_AHEAD = 5 * 366;

/**
 * The first time after a moment at which a schedule is due, in milliseconds since 1970, as the cron library of Velero 1.18.3 has it: day of
 * the month and day of the week must both match, ranges may wrap around, and what falls into an hour that is skipped comes right after it.
 * Undefined where the text cannot be read, and where there is no such time within five years. Without a zone, times are UTC.
 */
export function nextCronTimeMs(text: string, afterMs: number): number | undefined {
  if (text.length > TEXT_CHARS_MAX || !Number.isFinite(afterMs)) return undefined;
  const zone = /^(?:CRON_)?TZ=(\S*)\s+/.exec(text);
  const rest = text.slice(zone?.[0].length ?? 0).trim();
  if (rest.startsWith('@every ')) return afterEvery(rest.slice('@every '.length), afterMs);
  const sets = setsOf(WORDS[rest] ?? rest);
  const offsetOf = offsetsOf(zone?.[1] ?? 'UTC');
  return sets && offsetOf && firstAfter(sets, offsetOf, afterMs);
}

function afterEvery(text: string, afterMs: number): number | undefined {
  const ns = goDurationNs(text.trim());
  if (ns === undefined || ns <= 0n) return undefined;
  const seconds = Math.max(1, Math.floor(Number(ns) / 1e9));
  return (Math.floor(afterMs / 1000) + seconds) * 1000;
}

interface Sets {
  readonly minutes: readonly number[];
  readonly hours: readonly number[];
  readonly days: ReadonlySet<number>;
  readonly months: ReadonlySet<number>;
  readonly weekdays: ReadonlySet<number>;
}

function setsOf(text: string): Sets | undefined {
  const parts = text.split(/\s+/);
  if (parts.length !== FIELDS.length) return undefined;
  const sets = FIELDS.map((field, at) => numbersIn(parts[at] ?? '', field));
  const [minutes, hours, days, months, weekdays] = sets;
  if (!minutes || !hours || !days || !months || !weekdays) return undefined;
  const sorted = (set: ReadonlySet<number>): number[] => [...set].sort((a, b) => a - b);
  return {
    ...{ minutes: sorted(minutes), hours: sorted(hours), days, months },
    weekdays: new Set([...weekdays].map((day) => day % 7)),
  };
}

function numbersIn(text: string, field: Field): Set<number> | undefined {
  const all = new Set<number>();
  for (const part of text.split(',')) {
    const numbers = numbersOf(part, field);
    if (!numbers) return undefined;
    for (const number of numbers) all.add(number);
  }
  return all;
}

function numbersOf(part: string, field: Field): number[] | undefined {
  const { least, most, names } = field;
  const [range = '', stepText, ...more] = part.split('/');
  const step = stepText === undefined ? 1 : Number(/^\d{1,4}$/.exec(stepText)?.[0] ?? 0);
  if (more.length > 0 || step < 1) return undefined;
  // Of the week, whose Sunday has two numbers, `*` is seven days.
  const last = names === DAYS ? 6 : most;
  if (range === '*' || range === '?') return stepped(least, last, step);
  const ends = range.split('-').map((end) => numberOf(end, field));
  const [from, to = stepText === undefined ? from : last] = ends;
  if (ends.length > 2 || from === undefined || to === undefined) return undefined;
  if (ends.includes(undefined)) return undefined;
  if (from <= to) return stepped(from, to, step);
  const size = last - least + 1;
  return stepped(from, to + size, step).map((number) => ((number - least) % size) + least);
}

function stepped(from: number, to: number, step: number): number[] {
  const numbers: number[] = [];
  for (let number = from; number <= to; number += step) numbers.push(number);
  return numbers;
}

function numberOf(text: string, { least, most, names }: Field): number | undefined {
  const at = names?.indexOf(text.toLowerCase()) ?? -1;
  if (at >= 0) return least + at;
  const number = /^\d{1,2}$/.test(text) ? Number(text) : -1;
  return number >= least && number <= most ? number : undefined;
}

/** By how much the clocks of a zone are ahead of UTC at a moment, in milliseconds. */
type OffsetOf = (atMs: number) => number;

function offsetsOf(zone: string): OffsetOf | undefined {
  if (zone === 'UTC' || zone === '') return () => 0;
  let format: Intl.DateTimeFormat;
  try {
    format = new Intl.DateTimeFormat('en-US', {
      ...(zone !== 'Local' && { timeZone: zone }),
      ...{ year: 'numeric', month: '2-digit', day: '2-digit', hourCycle: 'h23' },
      ...{ hour: '2-digit', minute: '2-digit', second: '2-digit' },
    });
  } catch {
    return undefined;
  }
  return (atMs) => {
    const part: Partial<Record<Intl.DateTimeFormatPartTypes, number>> = {};
    for (const { type, value } of format.formatToParts(atMs)) part[type] = Number(value);
    const { year = 0, month = 1, day, hour, minute, second } = part;
    const wallMs = Date.UTC(year, month - 1, day, hour, minute, second);
    return wallMs - Math.floor(atMs / 1000) * 1000;
  };
}

/** Walls are what the clocks of the zone show, written as if it were UTC. */
function firstAfter(sets: Sets, offsetOf: OffsetOf, afterMs: number): number | undefined {
  const wallMs = afterMs + offsetOf(afterMs);
  // Clocks that were set back show a day's end twice.
  const firstDay = Math.floor(wallMs / DAY_MS) - 1;
  for (let day = firstDay; day < firstDay + DAYS_AHEAD; day++) {
    const startMs = day * DAY_MS;
    const date = new Date(startMs);
    if (!sets.months.has(date.getUTCMonth() + 1)) continue;
    if (!sets.days.has(date.getUTCDate()) || !sets.weekdays.has(date.getUTCDay())) continue;
    const found = firstOnDay(sets, offsetOf, startMs, afterMs);
    if (found !== undefined) return found;
  }
  return undefined;
}

function firstOnDay(
  { hours, minutes }: Sets,
  offsetOf: OffsetOf,
  startMs: number,
  afterMs: number,
): number | undefined {
  const before = offsetOf(startMs - DAY_MS);
  const later = offsetOf(startMs + 2 * DAY_MS);
  let first: number | undefined;
  for (const hour of hours) {
    for (const minute of minutes) {
      const wallMs = startMs + hour * 3_600_000 + minute * 60_000;
      if (before === later) {
        if (wallMs - before > afterMs) return wallMs - before;
        continue;
      }
      for (const atMs of momentsOf(wallMs, before, later, offsetOf)) {
        if (atMs > afterMs && atMs < (first ?? Infinity)) first = atMs;
      }
    }
  }
  return first;
}

/** When the clocks show it: once, twice, or, where they skip it, the moment at which they do. */
function momentsOf(
  wallMs: number,
  before: number,
  later: number,
  offsetOf: OffsetOf,
): readonly number[] {
  const shown = [wallMs - before, wallMs - later].filter(
    (atMs) => atMs + offsetOf(atMs) === wallMs,
  );
  if (shown.length > 0) return shown;
  let [low, high] = [wallMs - later - 60_000, wallMs - before];
  while (high - low > 1000) {
    const middle = Math.floor((low + high) / 2000) * 1000;
    if (offsetOf(middle) === before) low = middle;
    else high = middle;
  }
  return [high];
}
