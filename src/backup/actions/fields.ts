import { CodedError, lookup } from '../../base/index.ts';

export type Fields = Readonly<Record<string, unknown>>;

const NOTHING: Fields = {};

/**
 * Reads an object with Go's rules: a missing field or null is empty, and a wrong type is an error.
 * The API server rejects wrong types, but a plugin action may have produced one.
 */
export function structAt(parent: Fields, key: string): Fields {
  return asStruct(lookup(parent, key), key);
}

export function listAt(parent: Fields, key: string): Fields[] {
  const value = lookup(parent, key) ?? [];
  if (!Array.isArray(value)) throw wrongType(key, 'list');
  return value.map((each) => asStruct(each, key));
}

export function textAt(parent: Fields, key: string): string {
  const value = lookup(parent, key) ?? '';
  if (typeof value !== 'string') throw wrongType(key, 'text');
  return value;
}

export function textsAt(parent: Fields, key: string): [name: string, text: string][] {
  const texts = structAt(parent, key);
  return Object.keys(texts).map((name) => [name, textAt(texts, name)]);
}

function asStruct(value: unknown, key: string): Fields {
  if (value === undefined || value === null) return NOTHING;
  if (typeof value !== 'object' || Array.isArray(value)) throw wrongType(key, 'object');
  return value as Fields;
}

const wrongType = (key: string, type: string): CodedError =>
  new CodedError('BAD_ITEM', `the field ${key} of the item is no ${type}`);
