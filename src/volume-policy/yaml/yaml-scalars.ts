/** Values of a plain scalar. Dates are kept as the text that Go writes. */
export type PlainValue = string | boolean | number | bigint | null | GoTime;

/** A date or time written without quotes. */
export interface GoTime {
  readonly goTime: string;
}

const NULLS = new Set(['', '~', 'null', 'Null', 'NULL']);
const TRUE = new Set(['true', 'True', 'TRUE']);
const FALSE = new Set(['false', 'False', 'FALSE']);
const INFINITIES = new Map([
  ['.inf', Infinity],
  ['.Inf', Infinity],
  ['.INF', Infinity],
  ['+.inf', Infinity],
  ['+.Inf', Infinity],
  ['+.INF', Infinity],
  ['-.inf', -Infinity],
  ['-.Inf', -Infinity],
  ['-.INF', -Infinity],
  ['.nan', NaN],
  ['.NaN', NaN],
  ['.NAN', NaN],
]);
const FLOAT = /^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$/;
const DATE = /^\d{4}-\d{1,2}-\d{1,2}/;
const TIME =
  /^(\d{4})-(\d{1,2})-(\d{1,2})(?:(?:[Tt](\d{1,2}):(\d{1,2}):(\d{1,2})(\.\d+)?(Z|[-+]\d{2}:\d{2}))|(?: (\d{1,2}):(\d{1,2}):(\d{1,2})(\.\d+)?))?$/;

/** Follows go.yaml.in/yaml/v3 (resolve.go), which differs slightly from YAML 1.2. */
export function resolvePlain(text: string): PlainValue {
  if (NULLS.has(text)) return null;
  if (TRUE.has(text)) return true;
  if (FALSE.has(text)) return false;
  const infinity = INFINITIES.get(text);
  if (infinity !== undefined) return infinity;
  if (!/^[-+.0-9]/.test(text)) return text;
  if (DATE.test(text)) {
    const goTime = goTimeOf(text);
    if (goTime !== undefined) return { goTime };
  }
  const digits = text.replaceAll('_', '');
  const integer = integerOf(digits);
  if (integer !== undefined) return integer;
  return FLOAT.test(digits) && Number.isFinite(Number(digits)) ? Number(digits) : text;
}

/** Parses decimal, 0b, 0o and 0x numbers, and octal numbers of YAML 1.1. Limit: 64 bits. */
function integerOf(text: string): bigint | undefined {
  const match = /^([-+]?)(?:(0b[01]+|0x[0-9a-f]+|0o[0-7]+|0|[1-9][0-9]*)|0([0-7]+))$/i.exec(text);
  if (!match) return undefined;
  const [, sign = '', number, octal = ''] = match;
  const value = BigInt(number?.toLowerCase() ?? `0o${octal}`) * (sign === '-' ? -1n : 1n);
  return value >= -(2n ** 63n) && value < 2n ** 64n ? value : undefined;
}

function goTimeOf(text: string): string | undefined {
  const match = TIME.exec(text);
  if (!match) return undefined;
  const [, year = '', month = '', day = '', ...times] = match;
  const pad = (part: string): string => part.padStart(2, '0');
  const date = `${year}-${pad(month)}-${pad(day)}`;
  const [hour = '0', minute = '0', second = '0', fraction = ''] =
    times[0] === undefined ? times.slice(5) : times;
  const time = [hour, minute, second].map(pad).join(':');
  const moment = new Date(`${date}T${time}Z`);
  if (Number.isNaN(moment.getTime()) || moment.getUTCDate() !== Number(day)) return undefined;
  return `${date}T${time}${fraction.replace(/\.?0+$/, '')}${(times[4] ?? 'Z').replace(/^[-+]00:00$/, 'Z')}`;
}

/** The text that the Go library writes for a value. */
export function goText(value: Exclude<PlainValue, null>): string {
  if (typeof value === 'number') return goFloat(value);
  return typeof value === 'object' ? value.goTime : String(value);
}

/** Like strconv.FormatFloat 'g': exponent form below -4 and from 6 on, two digits at least. */
function goFloat(value: number): string {
  if (Number.isNaN(value)) return '.nan';
  if (!Number.isFinite(value)) return value > 0 ? '.inf' : '-.inf';
  const [digits = '', power = '0'] = value.toExponential().split('e');
  const exponent = Number(power);
  if (exponent >= -4 && exponent < 6) return Object.is(value, -0) ? '-0' : String(value);
  const sign = exponent < 0 ? '-' : '+';
  return `${digits}e${sign}${String(Math.abs(exponent)).padStart(2, '0')}`;
}
