import { lookup } from '../base/index.ts';
import { goTimeQuoted } from './go-quote.ts';

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
export function goDuration(text: string): bigint | { readonly error: string } {
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
