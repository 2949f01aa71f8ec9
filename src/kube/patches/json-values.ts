import { define, isExactNumber, lookup, numberText } from '../../base/index.ts';

/** The fields of an object of JSON. */
export type Fields = Readonly<Record<string, unknown>>;

/** Whether a value is a JSON object. Long numbers are JavaScript objects, but not JSON objects. */
export const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && !isExactNumber(value);

export const isList = (value: unknown): value is readonly unknown[] => Array.isArray(value);

const isNumber = (value: unknown): value is number | bigint | object =>
  typeof value === 'number' ||
  typeof value === 'bigint' ||
  (typeof value === 'object' && value !== null && isExactNumber(value));

/** A copy with one field added or replaced. */
export function withField(fields: Fields, key: string, value: unknown): Fields {
  const copy: Record<string, unknown> = { ...fields };
  define(copy, key, value);
  return copy;
}

export const withoutField = (fields: Fields, key: string): Fields =>
  Object.fromEntries(Object.entries(fields).filter(([each]) => each !== key));

/** Compares two JSON values: fields in any order, numbers by their digits. */
export function isSame(a: unknown, b: unknown): boolean {
  if (isNumber(a) || isNumber(b)) {
    return isNumber(a) && isNumber(b) && numberText(a) === numberText(b);
  }
  if (isList(a) || isList(b)) {
    if (!isList(a) || !isList(b) || a.length !== b.length) return false;
    return a.every((each, i) => isSame(each, b[i]));
  }
  if (!isFields(a) || !isFields(b)) return a === b;
  const keys = Object.keys(a);
  if (keys.length !== Object.keys(b).length) return false;
  return keys.every((key) => Object.hasOwn(b, key) && isSame(lookup(a, key), lookup(b, key)));
}

/** The types that Go distinguishes in lists. */
export function goTypeOf(value: unknown): string {
  if (value === null || value === undefined) return '%!s(<nil>)';
  if (typeof value === 'string') return 'string';
  if (typeof value === 'boolean') return 'bool';
  if (isNumber(value)) return /^-?\d+$/.test(numberText(value)) ? 'int64' : 'float64';
  return isList(value) ? '[]interface {}' : 'map[string]interface {}';
}

/** A value in the form of Go's `%v`, such as `map[image:nginx name:web]`. */
export function goText(value: unknown): string {
  if (value === null || value === undefined) return '<nil>';
  if (isNumber(value)) return numberText(value);
  if (isList(value)) return `[${value.map(goText).join(' ')}]`;
  if (!isFields(value)) return typeof value === 'string' ? value : JSON.stringify(value);
  const texts = Object.keys(value)
    .sort()
    .map((key) => `${key}:${goText(lookup(value, key))}`);
  return `map[${texts.join(' ')}]`;
}
