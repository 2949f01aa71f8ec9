import { define, lookup } from '../own-properties.ts';
import { isUtf8 } from 'node:buffer';
import { randomUUID } from 'node:crypto';

/**
 * JSON exactly like Go's encoding/json, because content IDs depend on these bytes. Reference:
 * encoding/json in Go 1.26 (`appendString` with HTML escaping on).
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
  return lookup(SHORT, char) ?? `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;
}

/** A quoted JSON string. Lone surrogates become `\ufffd`, like invalid input in Go. */
export function goString(text: string): string {
  if (!NEEDS_ESCAPE.test(text)) return `"${text}"`;
  const escaped = text.replaceAll(ESCAPES, escapeOne);
  return `"${escaped.isWellFormed() ? escaped : escaped.replaceAll(/\p{Surrogate}/gu, '\\ufffd')}"`;
}

/** Escapes the characters in any JSON that Go escapes. They occur only within strings. */
export const goEscaped = (json: string): string => json.replaceAll(/[<>&\u2028\u2029]/g, escapeOne);

/** A number written digit by digit, because Go's int64 exceeds a double. */
export class RawNumber {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/**
 * Any plain value in Go's compact form, with keys in insertion order. Omits `undefined` fields.
 * Writes bigint and {@link RawNumber} digit by digit, and maps with sorted keys.
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

/** Compares two strings by their UTF-8 bytes. (UTF-16 order differs above U+FFFF.) */
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

/** Replaces each invalid byte, like Go. (TextDecoder replaces runs of invalid bytes.) */
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
 * Any plain value in the form of a Go map: compact, with keys sorted by their bytes at every level.
 * Writes numbers of {@link parseJsonExact} digit by digit. Works for any depth of nesting.
 */
export const sortedGoJson = (value: unknown): string =>
  whateverDepth(
    () => nestedGoJson(value),
    () => deepGoJson(value),
  );

/**
 * JSON.stringify for any depth of nesting. Kubernetes accepts 10,000 levels (sigs.k8s.io/json,
 * maxNestingDepth), so any tenant can create such an object. The order of keys may differ for deep
 * values.
 */
export const exactJson = (value: unknown): string =>
  whateverDepth(
    () => JSON.stringify(value),
    () => deepGoJson(value),
  );

/** Falls back to `without`, which is slower but needs no stack. */
function whateverDepth<T>(byStack: () => T, without: () => T): T {
  try {
    return byStack();
  } catch (error) {
    if (error instanceof RangeError) return without();
    throw error;
  }
}

function nestedGoJson(value: unknown): string {
  if (typeof value !== 'object' || value === null) return goJson(value);
  if (Array.isArray(value)) return `[${value.map((item) => nestedGoJson(item)).join(',')}]`;
  const digits = digitsOf(value);
  if (digits !== undefined) return digits;
  const fields = value as Record<string, unknown>;
  let text = '{';
  for (const key of sortedKeys(fields)) {
    const field = lookup(fields, key);
    if (field === undefined) continue;
    if (text.length > 1) text += ',';
    text += `${goString(key)}:${nestedGoJson(field)}`;
  }
  return `${text}}`;
}

function sortedKeys(fields: Record<string, unknown>): string[] {
  const keys = Object.keys(fields).sort();
  if (keys.some((key) => SURROGATE.test(key))) keys.sort(compareUtf8);
  return keys;
}

/** {@link nestedGoJson} with a list of pending values instead of the stack. */
function deepGoJson(root: unknown): string {
  const parts: string[] = [];
  const ahead: ({ readonly value: unknown } | { readonly text: string })[] = [{ value: root }];
  for (let next = ahead.pop(); next; next = ahead.pop()) {
    if ('text' in next) {
      parts.push(next.text);
      continue;
    }
    const { value } = next;
    if (typeof value !== 'object' || value === null) {
      parts.push(goJson(value));
      continue;
    }
    const digits = digitsOf(value);
    if (digits !== undefined) {
      parts.push(digits);
      continue;
    }
    const isList = Array.isArray(value);
    const fields = value as Record<string, unknown>;
    const keys = isList
      ? value.keys()
      : sortedKeys(fields).filter((key) => lookup(fields, key) !== undefined);
    const inside = [...keys].flatMap((key, index) => [
      { text: `${index > 0 ? ',' : ''}${isList ? '' : `${goString(String(key))}:`}` },
      { value: lookup(fields, String(key)) },
    ]);
    ahead.push({ text: isList ? ']' : '}' });
    for (const each of inside.reverse()) ahead.push(each);
    ahead.push({ text: isList ? '[' : '{' });
  }
  return parts.join('');
}

const SURROGATE = /[\ud800-\udfff]/;

/** ECMAScript's JSON.parse source text access, which keeps digits. Unknown to TypeScript. */
const RawJson = JSON as typeof JSON & {
  rawJSON(text: string): object;
  isRawJSON(value: object): value is { readonly rawJSON: string };
};

const digitsOf = (value: object): string | undefined => {
  if (value instanceof RawNumber) return value.text;
  return RawJson.isRawJSON(value) ? value.rawJSON : undefined;
};

/** Whether an object stands for a number, so that it has no fields. */
export const isExactNumber = (value: object): boolean => digitsOf(value) !== undefined;

/** The digits of a number in any of its forms. */
export const numberText = (value: number | bigint | object): string =>
  typeof value === 'object' ? (digitsOf(value) ?? '') : String(value);

/** A deep copy of a result of {@link parseJsonExact}. structuredClone cannot copy its numbers. */
export function jsonCopy<T>(value: T): T {
  if (typeof value !== 'object' || value === null || isExactNumber(value)) return value;
  if (Array.isArray(value)) return value.map((each: unknown) => jsonCopy(each)) as T;
  const fields = Object.entries(value).map(([key, field]) => [key, jsonCopy(field as unknown)]);
  return Object.fromEntries(fields) as T;
}

/**
 * JSON.parse for values that are written again unchanged. Keeps integers beyond 2^53 digit by
 * digit, also through JSON.stringify. They are opaque objects. To calculate with them, use
 * {@link parseJsonLossless}.
 */
export function parseJsonExact(text: string): unknown {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text) as unknown;
  const revived = (): unknown =>
    JSON.parse(text, (_key, value: unknown, context?: { source?: string }) => {
      if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
      const source = context?.source ?? '';
      return /^-?\d+$/.test(source) ? RawJson.rawJSON(source) : value;
    });
  return whateverDepth(revived, () => parseDeepExact(text));
}

/** A string or a number. Matching strings skips digits within them. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g;

/**
 * Works without a reviver, which needs a stack. Turns long numbers into strings with a random mark,
 * and then back into numbers.
 */
function parseDeepExact(text: string): unknown {
  const mark = `${randomUUID()} `;
  const marked = text.replaceAll(TOKEN, (token) =>
    /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${mark}${token}"` : token,
  );
  const root = { value: JSON.parse(marked) as unknown };
  const ahead: object[] = [root];
  for (let next = ahead.pop(); next; next = ahead.pop()) {
    const fields = next as Record<string, unknown>;
    for (const [key, value] of Object.entries(fields)) {
      if (typeof value === 'object' && value !== null) ahead.push(value);
      else if (typeof value === 'string' && value.startsWith(mark)) {
        define(fields, key, RawJson.rawJSON(value.slice(mark.length)));
      }
    }
  }
  return root.value;
}

/** Sixteen digits in a row. Without them, no number can be beyond 2^53. */
const LONG_NUMBER = /[:,[\s]-?\d{16}/;

/**
 * JSON.parse that keeps integers beyond 2^53 as bigint. Avoids the reviver if possible, because
 * that takes four times as long.
 */
export function parseJsonLossless(text: string): unknown {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text) as unknown;
  return JSON.parse(text, (_key, value: unknown, context?: { source?: string }) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
    const source = context?.source ?? '';
    return /^-?\d+$/.test(source) ? BigInt(source) : value;
  }) as unknown;
}
