import { lookup } from '../base/index.ts';
import { goQuoted, goQuotedChar, goTimeQuoted } from './go-quote.ts';
import { badCron, parseFields } from './fields.ts';
import { nextTime } from './search.ts';
import { localZone, Zone } from './zone.ts';

/** The times of a repeated task. */
export interface Cron {
  /** The next time, in seconds since 1970. Undefined if there is none within five years. */
  nextAfter(seconds: number): number | undefined;
  /** Restricts days of month and of week. A day must match both, unlike in older Veleros. */
  readonly hasBothDays: boolean;
  /** Runs only on request: `@manual` and its synonyms. */
  readonly isManual: boolean;
  /** For `@every`: seconds between two times, counted from the first one. */
  readonly everySeconds?: number;
}

/** go-cron: parser.go, MaxSpecLength. */
const BYTES_MAX = 1024;
/** go-cron: parser.go, validateTimezone. */
const ZONE_BYTES_MAX = 64;
const SECOND_NS = 1_000_000_000n;
/** White space in Go. */
const BLANK =
  '[\\t\\n\\v\\f\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]';
const BLANKS = new RegExp(`${BLANK}+`, 'u');
const OUTER_BLANKS = new RegExp(`^${BLANK}+|${BLANK}+$`, 'gu');
const DESCRIPTORS: Readonly<Record<string, string>> = {
  '@yearly': '0 0 1 1 *',
  '@annually': '0 0 1 1 *',
  '@monthly': '0 0 1 * *',
  '@weekly': '0 0 * * 0',
  '@daily': '0 0 * * *',
  '@midnight': '0 0 * * *',
  '@hourly': '0 * * * *',
};
const MANUAL = ['@triggered', '@manual', '@none'];
const EVERY = '@every ';

/**
 * Parses an expression. `zone` applies if the expression names none; the default is the zone of
 * this process. Throws `BAD_CRON` in the words of Velero's library.
 */
export function parseCron(text: string, zone: Zone = localZone()): Cron {
  if (text === '') throw badCron('empty spec string');
  const bytes = Buffer.byteLength(text);
  if (bytes > BYTES_MAX) throw badCron(`spec too long: ${bytes} > ${BYTES_MAX}`);
  const { own, rest } = zoneOf(text);
  if (rest.startsWith('@')) return describedCron(rest, own ?? zone);
  return cronOf(
    rest.split(BLANKS).filter((field) => field !== ''),
    own ?? zone,
  );
}

function cronOf(texts: readonly string[], zone: Zone): Cron {
  const { fields, hasBothDays } = parseFields(texts);
  return {
    nextAfter: (seconds) => nextTime(fields, zone, seconds),
    hasBothDays,
    isManual: false,
  };
}

/** `own` is undefined if the expression names no zone, or the local one. */
function zoneOf(text: string): { readonly own: Zone | undefined; readonly rest: string } {
  if (!/^(?:CRON_)?TZ=/.test(text)) return { own: undefined, rest: text };
  const blank = text.indexOf(' ');
  if (blank < 0) throw badCron(`missing fields after timezone in spec ${goQuoted(text)}`);
  let name = text.slice(text.indexOf('=') + 1, blank);
  if (/^(["']).*\1$/su.test(name) && name.length >= 2) name = name.slice(1, -1);
  const problem = zoneNameProblem(name);
  if (problem !== undefined) throw badCron(`invalid timezone ${goQuoted(name)}: ${problem}`);
  const own = name === 'Local' ? undefined : Zone.of(name);
  if (!own && name !== 'Local') {
    const why = name.startsWith('/') ? 'time: invalid location name' : `unknown time zone ${name}`;
    throw badCron(`unknown time zone ${goQuoted(name)}: ${why}`);
  }
  const rest = text.slice(blank).replaceAll(OUTER_BLANKS, '');
  if (rest === '') throw badCron(`missing fields after timezone ${goQuoted(name)}`);
  return { own, rest };
}

function zoneNameProblem(name: string): string | undefined {
  if (name === '') return 'empty timezone string';
  if (Buffer.byteLength(name) > ZONE_BYTES_MAX) {
    return `timezone string too long (max ${ZONE_BYTES_MAX} chars)`;
  }
  const at = name.search(/[^A-Za-z0-9/_\-+:]/u);
  if (at < 0) return undefined;
  const char = String.fromCodePoint(name.codePointAt(at) ?? 0);
  const byte = Buffer.byteLength(name.slice(0, at));
  return `invalid character ${goQuotedChar(char)} at position ${byte} in timezone`;
}

function describedCron(text: string, zone: Zone): Cron {
  const fields = lookup(DESCRIPTORS, text);
  if (fields !== undefined) return cronOf(fields.split(' '), zone);
  if (MANUAL.includes(text)) {
    return { nextAfter: () => undefined, hasBothDays: false, isManual: true };
  }
  if (!text.startsWith(EVERY)) throw badCron(`unrecognized descriptor: ${goQuoted(text)}`);
  const ns = goDuration(text.slice(EVERY.length));
  if (typeof ns !== 'bigint') {
    throw badCron(`failed to parse duration ${goQuoted(text)}: ${ns.error}`);
  }
  if (ns < SECOND_NS) throw badCron(`@every duration must be at least 1s: ${goQuoted(text)}`);
  const delay = Number(ns / SECOND_NS);
  return {
    nextAfter: (seconds) => Math.floor(seconds) + delay,
    hasBothDays: false,
    isManual: false,
    everySeconds: delay,
  };
}

/** Search spans in seconds before now. The last two are a month and a year. */
const SPANS = [3600, 86_400, 31 * 86_400, 366 * 86_400];

/**
 * The last time after `since` that is not after `now`; undefined if there is none. `since` may be
 * years ago, so the search tries short spans before `now` first.
 */
export function latestTime(cron: Cron, since: number, now: number): number | undefined {
  const { everySeconds } = cron;
  if (everySeconds !== undefined) {
    const times = Math.floor((now - Math.floor(since)) / everySeconds);
    return times > 0 ? Math.floor(since) + times * everySeconds : undefined;
  }
  for (const span of SPANS) {
    if (now - span <= since) break;
    const found = lastFrom(cron, now - span, now);
    if (found !== undefined) return found;
  }
  return lastFrom(cron, since, now);
}

function lastFrom(cron: Cron, since: number, now: number): number | undefined {
  let last: number | undefined;
  for (let at = cron.nextAfter(since); at !== undefined && at <= now; at = cron.nextAfter(at)) {
    last = at;
  }
  return last;
}

const UNITS: Readonly<Record<string, bigint>> = {
  ns: 1n,
  us: 1000n,
  // Both Unicode characters for the micro sign.
  '\u00b5s': 1000n,
  '\u03bcs': 1000n,
  ms: 1_000_000n,
  s: 1_000_000_000n,
  m: 60_000_000_000n,
  h: 3_600_000_000_000n,
};
/** Go's limit: 64 bits with a sign. */
const MOST = 1n << 63n;
/** More digits change nothing. */
const FRACTION_DIGITS_MAX = 18;
const PART = /^(\d*)(?:(\.)(\d*))?([^.\d]*)/;

/** Nanoseconds, or the error text of Go's `time.ParseDuration` (1.26). */
function goDuration(text: string): bigint | { readonly error: string } {
  const invalid = { error: `time: invalid duration ${goTimeQuoted(text)}` };
  const sign = /^[-+]/.exec(text)?.[0] ?? '';
  let rest = text.slice(sign.length);
  if (rest === '0') return 0n;
  if (rest === '') return invalid;
  let total = 0n;
  while (rest !== '') {
    const [part = '', whole = '', point, fraction = '', unit = ''] = PART.exec(rest) ?? [];
    const isNumber = whole !== '' || (point !== undefined && fraction !== '');
    if (!isNumber || BigInt(whole) > MOST) return invalid;
    if (unit === '') return { error: `time: missing unit in duration ${goTimeQuoted(text)}` };
    const unitNs = lookup(UNITS, unit);
    if (unitNs === undefined) {
      const error = `time: unknown unit ${goTimeQuoted(unit)} in duration ${goTimeQuoted(text)}`;
      return { error };
    }
    let ns = BigInt(whole) * unitNs;
    if (fraction !== '') {
      const digits = fraction.slice(0, FRACTION_DIGITS_MAX);
      ns += BigInt(Math.trunc(Number(digits) * (Number(unitNs) / 10 ** digits.length)));
    }
    total += ns;
    if (total > MOST) return invalid;
    rest = rest.slice(part.length);
  }
  if (sign === '-') return -total;
  return total < MOST ? total : invalid;
}
