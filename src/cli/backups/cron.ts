import { goDurationNs } from '../../backup/index.ts';

const MONTHS = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
const DAYS = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'];

interface Field {
  readonly what: string;
  readonly least: number;
  readonly most: number;
  /** Names for the numbers from `least` on. */
  readonly names?: readonly string[];
}

/** Velero reads it with github.com/robfig/cron v3, ParseStandard. */
const FIELDS: readonly Field[] = [
  { what: 'minute', least: 0, most: 59 },
  { what: 'hour', least: 0, most: 23 },
  { what: 'day of the month', least: 1, most: 31 },
  { what: 'month', least: 1, most: 12, names: MONTHS },
  { what: 'day of the week', least: 0, most: 6, names: DAYS },
];
const WORDS = ['@yearly', '@annually', '@monthly', '@weekly', '@daily', '@midnight', '@hourly'];

/** Why a server could not read the times of a schedule; undefined where it can. */
export function cronProblem(text: string): string | undefined {
  const zone = /^(?:CRON_)?TZ=(\S*)\s+/.exec(text);
  if (zone && !isZone(zone[1] ?? '')) return `there is no time zone "${zone[1] ?? ''}"`;
  const rest = text.slice(zone?.[0].length ?? 0).trim();
  if (rest.startsWith('@every ')) {
    const ns = goDurationNs(rest.slice('@every '.length));
    return ns === undefined || ns < 0n ? 'after "@every" comes a duration such as 6h' : undefined;
  }
  if (rest.startsWith('@')) {
    return WORDS.includes(rest) ? undefined : `"${rest}" is none of ${WORDS.join(', ')}, @every`;
  }
  const fields = rest.split(/\s+/).filter((field) => field !== '');
  if (fields.length !== FIELDS.length) {
    return `it has ${fields.length} fields and not 5: minute, hour, day of the month, month, day of the week`;
  }
  for (const [at, field] of FIELDS.entries()) {
    const problem = fieldProblem(fields[at] ?? '', field);
    if (problem !== undefined) return problem;
  }
  return undefined;
}

function fieldProblem(text: string, field: Field): string | undefined {
  const wrong = text.split(',').find((part) => !isRange(part, field));
  if (wrong === undefined) return undefined;
  return `the ${field.what} "${text}" is not a number from ${field.least} to ${field.most}, a range, a list or *`;
}

function isRange(text: string, field: Field): boolean {
  const [range = '', step, ...more] = text.split('/');
  if (more.length > 0) return false;
  if (step !== undefined && !(/^\d{1,4}$/.test(step) && Number(step) > 0)) return false;
  if (range === '*' || range === '?') return true;
  const ends = range.split('-').map((end) => numberOf(end, field));
  const [first, last = first] = ends;
  return ends.length <= 2 && first !== undefined && last !== undefined && first <= last;
}

function numberOf(text: string, { least, most, names }: Field): number | undefined {
  const named = names?.indexOf(text.toLowerCase()) ?? -1;
  if (named >= 0) return least + named;
  const number = /^\d{1,2}$/.test(text) ? Number(text) : -1;
  return number >= least && number <= most ? number : undefined;
}

function isZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat('en', { timeZone: name });
    return true;
  } catch {
    return name === 'Local';
  }
}
