import { CodedError } from '../errors.ts';
import { type Nanoseconds, SECOND_NS } from '../clock.ts';

/** Go's zero time, `0001-01-01T00:00:00Z`, as nanoseconds since 1970. Kopia's "never". */
export const GO_ZERO_TIME_NS: Nanoseconds = -62_135_596_800n * SECOND_NS;

function floorDiv(a: bigint, b: bigint): bigint {
  const q = a / b;
  return a % b < 0n ? q - 1n : q;
}

let lastSeconds = 0n;
let lastText = '1970-01-01T00:00:00';

/** RFC 3339 in UTC like Go's JSON: up to 9 fraction digits, without trailing zeros. */
export function formatGoTime(ns: Nanoseconds): string {
  const seconds = floorDiv(ns, SECOND_NS);
  const fraction = ns - seconds * SECOND_NS;
  // Cache the text of the last second. Files of a tree share few seconds, and Date is slow.
  if (seconds !== lastSeconds) {
    lastSeconds = seconds;
    lastText = isoSeconds(seconds);
  }
  if (fraction === 0n) return `${lastText}Z`;
  const digits = fraction.toString().padStart(9, '0').replace(/0+$/, '');
  return `${lastText}.${digits}Z`;
}

function isoSeconds(seconds: bigint): string {
  const date = new Date(Number(seconds) * 1000);
  const year = date.getUTCFullYear();
  if (Number.isNaN(year) || year < 0 || year > 9999) {
    throw new CodedError('TIME_OUT_OF_RANGE', `time ${seconds} s is outside the years 0 to 9999`);
  }
  return date.toISOString().slice(0, 19);
}

const PATTERN = /^(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)$/;

/** Parses RFC 3339 with any offset. Throws `BAD_TIME`. */
export function parseGoTime(text: string): Nanoseconds {
  const match = PATTERN.exec(text);
  if (!match) throw new CodedError('BAD_TIME', `"${text.slice(0, 40)}" is not an RFC 3339 time`);
  const [, year, month, day, hour, minute, second, fraction = '', zone = 'Z'] = match;
  const date = new Date(0);
  date.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  date.setUTCHours(Number(hour), Number(minute), Number(second));
  let seconds = BigInt(date.getTime()) / 1000n;
  if (zone !== 'Z') {
    const minutes = Number(zone.slice(1, 3)) * 60 + Number(zone.slice(4, 6));
    seconds -= BigInt(zone.startsWith('-') ? -minutes : minutes) * 60n;
  }
  return seconds * SECOND_NS + BigInt(fraction.padEnd(9, '0'));
}
