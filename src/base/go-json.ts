import { isUtf8 } from 'node:buffer';

/**
 * JSON as Go's encoding/json writes it. Content IDs cover these bytes, so each rule matters:
 * reference: encoding/json in Go 1.26 (`appendString` with HTML escaping on).
 */
const NEEDS_ESCAPE = /["\\<>&\u0000-\u001f\u2028\u2029\ud800-\udfff]/;
const ESCAPES = /["\\<>&\u0000-\u001f\u2028\u2029]/g;
const SHORT: Record<string, string> = {
  '"': '\\"',
  '\\': '\\\\',
  '\b': '\\b',
  '\f': '\\f',
  '\n': '\\n',
  '\r': '\\r',
  '\t': '\\t',
};

function escapeOne(char: string): string {
  return SHORT[char] ?? `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;
}

/** A quoted JSON string. Lone surrogates become `\ufffd`, as Go writes invalid input. */
export function goString(text: string): string {
  if (!NEEDS_ESCAPE.test(text)) return `"${text}"`;
  const escaped = text.replaceAll(ESCAPES, escapeOne);
  return `"${escaped.isWellFormed() ? escaped : escaped.replaceAll(/\p{Surrogate}/gu, '\\ufffd')}"`;
}

/** A number that must reach the JSON text digit by digit (Go's int64 exceeds a double). */
export class RawNumber {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/**
 * Any plain value in Go's compact layout, keys in insertion order; `undefined` fields are left out.
 * bigint and {@link RawNumber} are written digit by digit. Maps are written with sorted keys.
 */
export function goJson(value: unknown): string {
  switch (typeof value) {
    case 'string':
      return goString(value);
    case 'boolean':
    case 'bigint':
      return String(value);
    case 'number':
      return JSON.stringify(value);
    case 'object':
      return value === null ? 'null' : goObject(value);
    case 'undefined':
    case 'function':
    case 'symbol':
      throw new TypeError(`cannot write ${typeof value} as JSON`);
  }
}

function goObject(value: object): string {
  if (value instanceof RawNumber) return value.text;
  if (Array.isArray(value)) return `[${value.map((item) => goJson(item)).join(',')}]`;
  const entries =
    value instanceof Map
      ? [...(value as Map<string, unknown>)].sort(([a], [b]) => compareUtf8(a, b))
      : Object.entries(value);
  const fields = entries
    .filter(([, field]) => field !== undefined)
    .map(([key, field]) => `${goString(key)}:${goJson(field)}`);
  return `{${fields.join(',')}}`;
}

/** Order of two strings by their UTF-8 bytes (UTF-16 order differs above U+FFFF). */
export function compareUtf8(a: string, b: string): number {
  if (a === b) return 0;
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x === y) continue;
    const xHigh = x >= 0xd800 && x <= 0xdfff;
    const yHigh = y >= 0xd800 && y <= 0xdfff;
    if (xHigh !== yHigh) return xHigh ? 1 : -1;
    return x - y;
  }
  return a.length - b.length;
}

/** Go's replacement of each invalid byte (TextDecoder replaces runs of them). */
export function decodeGoUtf8(bytes: Uint8Array, replacement = '\ufffd'): string {
  if (isUtf8(bytes)) return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString();
  let text = '';
  for (let at = 0; at < bytes.length;) {
    const length = sequenceLength(bytes, at);
    text += length === 0 ? replacement : Buffer.from(bytes.subarray(at, at + length)).toString();
    at += length || 1;
  }
  return text;
}

function sequenceLength(bytes: Uint8Array, at: number): number {
  const first = bytes[at] ?? 0;
  const length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length === 0 || at + length > bytes.length) return 0;
  return isUtf8(bytes.subarray(at, at + length)) ? length : 0;
}

/**
 * Any plain value as Go writes it from a map: compact, keys sorted by their bytes at every level. Numbers of
 * {@link parseJsonExact} are written digit by digit.
 */
export function sortedGoJson(value: unknown): string {
  if (typeof value !== 'object' || value === null) return goJson(value);
  if (Array.isArray(value)) return `[${value.map((item) => sortedGoJson(item)).join(',')}]`;
  const digits = digitsOf(value);
  if (digits !== undefined) return digits;
  const fields = value as Record<string, unknown>;
  const keys = Object.keys(fields).sort();
  if (keys.some((key) => SURROGATE.test(key))) keys.sort(compareUtf8);
  let text = '{';
  for (const key of keys) {
    const field = fields[key];
    if (field === undefined) continue;
    if (text.length > 1) text += ',';
    text += `${goString(key)}:${sortedGoJson(field)}`;
  }
  return `${text}}`;
}

const SURROGATE = /[\ud800-\udfff]/;

/** ECMAScript's own way to keep the digits of a number (JSON.parse source text access), which TypeScript does not know yet. */
const RawJson = JSON as typeof JSON & {
  rawJSON(text: string): object;
  isRawJSON(value: object): value is { readonly rawJSON: string };
};

const digitsOf = (value: object): string | undefined => {
  if (value instanceof RawNumber) return value.text;
  return RawJson.isRawJSON(value) ? value.rawJSON : undefined;
};

/**
 * JSON.parse for what is to be written again as it was: integers beyond 2^53 stay digit by digit, and JSON.stringify, too, writes them
 * so. They are opaque objects; {@link parseJsonLossless} is for those who count with them.
 */
export function parseJsonExact(text: string): unknown {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text) as unknown;
  return JSON.parse(text, (_key, value: unknown, context?: { source?: string }) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
    const source = context?.source ?? '';
    return /^-?\d+$/.test(source) ? RawJson.rawJSON(source) : value;
  }) as unknown;
}

/** Sixteen digits in a row: only then may a number be beyond 2^53. */
const LONG_NUMBER = /[:,[\s]-?\d{16}/;

/** JSON.parse that keeps integers beyond 2^53 as bigint; a reviver takes four times as long. */
export function parseJsonLossless(text: string): unknown {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text) as unknown;
  return JSON.parse(text, (_key, value: unknown, context?: { source?: string }) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
    const source = context?.source ?? '';
    return /^-?\d+$/.test(source) ? BigInt(source) : value;
  }) as unknown;
}
