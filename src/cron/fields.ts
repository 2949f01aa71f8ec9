import { CodedError, lookup } from '../base/index.ts';
import { goQuoted } from './go-quote.ts';
import type { CronFields } from './search.ts';

interface Bounds {
  readonly least: number;
  readonly most: number;
  readonly names?: Readonly<Record<string, number>>;
}

const MONTHS = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
const DAYS = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'];
const numbered = (names: readonly string[], first: number): Record<string, number> =>
  Object.fromEntries(names.map((name, index) => [name, index + first]));

const MINUTE: Bounds = { least: 0, most: 59 };
const HOUR: Bounds = { least: 0, most: 23 };
const DAY_OF_MONTH: Bounds = { least: 1, most: 31 };
const MONTH: Bounds = { least: 1, most: 12, names: numbered(MONTHS, 1) };
/** Sunday is 0 and 7. */
const DAY_OF_WEEK: Bounds = { least: 0, most: 7, names: numbered(DAYS, 0) };
const FIELDS = 5;
/** Largest `int` in Go. */
const INT_MAX = (1n << 63n) - 1n;

export const badCron = (text: string): CodedError => new CodedError('BAD_CRON', text);

export interface ParsedFields {
  readonly fields: CronFields;
  /** Whether days of the month and days of the week are both restricted. Both must match then. */
  readonly hasBothDays: boolean;
}

/** Throws `BAD_CRON` in go-cron's words, for the first mistake that go-cron finds. */
export function parseFields(texts: readonly string[]): ParsedFields {
  const [minute = '', hour = '', dayOfMonth = '', month = '', dayOfWeek = ''] = texts;
  if (texts.length !== FIELDS) {
    throw badCron(`expected exactly 5 fields, found ${texts.length}: [${texts.join(' ')}]`);
  }
  if (texts.some((text) => text.split(',').some((part) => part.startsWith('H')))) {
    throw badCron('h expressions require hash option to be enabled');
  }
  const [minutes, hours, months] = [
    numbersOf(minute, MINUTE),
    numbersOf(hour, HOUR),
    numbersOf(month, MONTH),
  ];
  if (/[lw]/i.test(dayOfMonth)) {
    throw badCron(
      'extended day-of-month syntax requires DomL option (for L, L-n) or DomW option (for nW, LW) to be enabled',
    );
  }
  const daysOfMonth = numbersOf(dayOfMonth, DAY_OF_MONTH);
  if (dayOfWeek.includes('#')) {
    throw badCron('#n/#L syntax requires DowNth or DowLast option to be enabled');
  }
  const days = numbersOf(dayOfWeek, DAY_OF_WEEK);
  const daysOfWeek = new Set([...days].map((day) => day % 7));
  return {
    fields: { minutes, hours, daysOfMonth, months, daysOfWeek },
    hasBothDays: daysOfMonth.size < DAY_OF_MONTH.most && daysOfWeek.size < DAYS.length,
  };
}

function numbersOf(text: string, bounds: Bounds): Set<number> {
  // Empty parts of a list are ignored.
  const parts = text.split(',').filter((part) => part !== '');
  return new Set(parts.flatMap((part) => rangeOf(part, bounds)));
}

function rangeOf(text: string, bounds: Bounds): number[] {
  const [range = '', stepText, ...more] = text.split('/');
  const ends = range.split('-');
  const given = endsOf(ends, bounds);
  const { first } = given;
  let { last } = given;
  let step = 1;
  if (more.length > 0) throw badCron(`too many slashes: ${goQuoted(text)}`);
  if (stepText !== undefined) {
    step = numberOf(stepText);
    if (ends.length === 1) last = bounds.most;
  }
  assertRange(text, first, last, step, bounds);
  const size = bounds.most - bounds.least + 1;
  // A range whose end is below its start wraps around.
  const end = first > last ? last + size : last;
  const numbers: number[] = [];
  for (let number = first; number <= end; number += step) {
    numbers.push(number > bounds.most ? number - size : number);
  }
  return numbers;
}

function endsOf(ends: readonly string[], bounds: Bounds): { first: number; last: number } {
  const [firstText = '', lastText] = ends;
  // A part after the star is ignored.
  if (firstText === '*' || firstText === '?') return { first: bounds.least, last: bounds.most };
  const first = numberOf(firstText, bounds);
  if (ends.length > 2) throw badCron(`too many hyphens: ${goQuoted(ends.join('-'))}`);
  return { first, last: lastText === undefined ? first : numberOf(lastText, bounds) };
}

function assertRange(
  text: string,
  first: number,
  last: number,
  step: number,
  { least, most }: Bounds,
): void {
  const shown = goQuoted(text);
  if (first < least) {
    throw badCron(`beginning of range (${first}) below minimum (${least}): ${shown}`);
  }
  if (last > most) throw badCron(`end of range (${last}) above maximum (${most}): ${shown}`);
  if (step === 0) throw badCron(`step of range must be a positive number: ${shown}`);
  // Go counts without a sign: a start above the maximum wraps around to a huge number, so no step
  // is too long for it.
  const size = first > last ? most - first + 1 + (last - least + 1) : last - first + 1;
  if (step > 1 && size >= 0 && step >= size) {
    throw badCron(`step (${step}) must be less than range size (${size}): ${shown}`);
  }
}

function numberOf(text: string, { names }: Pick<Bounds, 'names'> = {}): number {
  const named = names && lookup(names, text.toLowerCase());
  if (named !== undefined) return named;
  const refused = (why: string): CodedError =>
    badCron(
      `failed to parse int from ${goQuoted(text)}: strconv.Atoi: parsing ${goQuoted(text)}: ${why}`,
    );
  if (!/^[-+]?\d+$/.test(text)) throw refused('invalid syntax');
  const number = BigInt(text.replace(/^\+/, ''));
  if (number > INT_MAX || number < -INT_MAX - 1n) throw refused('value out of range');
  if (number < 0n) throw badCron(`negative number (${number}) not allowed: ${goQuoted(text)}`);
  return Number(number);
}
