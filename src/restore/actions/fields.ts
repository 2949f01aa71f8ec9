import { lookup } from '../../base/index.ts';
/** Fields of objects whose kinds have no types here. */
export type Fields = Record<string, unknown>;

export const isFields = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Returns the object at a path, or undefined. */
export function fieldsAt(object: unknown, ...path: readonly string[]): Fields | undefined {
  let at = object;
  for (const key of path) at = isFields(at) ? lookup(at, key) : undefined;
  return isFields(at) ? at : undefined;
}

/** Returns the objects in the list at a path. */
export function listAt(object: unknown, ...path: readonly string[]): Fields[] {
  const parent = fieldsAt(object, ...path.slice(0, -1));
  const list = lookup(parent, path.at(-1) ?? '');
  return Array.isArray(list) ? (list as unknown[]).filter(isFields) : [];
}

export const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');
