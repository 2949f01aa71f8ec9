import { define, lookup } from '../../base/index.ts';
import { isFields, isList, isSame } from './json-values.ts';

/**
 * Applies a JSON merge patch (RFC 7386) like github.com/evanphx/json-patch v5.9.11 (MergePatch),
 * which kube-apiserver and Velero use. Nulls remove fields, also in objects of new lists. The
 * document is not changed; the result shares its unchanged parts.
 */
export function applyMergePatch(document: unknown, patch: unknown): unknown {
  if (patch === null || (!isFields(patch) && !isList(patch))) return patch;
  if (!isFields(document) || isList(patch)) return withoutNulls(patch);
  return merged(document, patch);
}

function merged(
  document: Readonly<Record<string, unknown>>,
  patch: Readonly<Record<string, unknown>>,
): Record<string, unknown> {
  const result: Record<string, unknown> = { ...document };
  for (const [key, value] of Object.entries(patch)) {
    const current = lookup(document, key) ?? null;
    if (value === null) delete result[key];
    else if (!isFields(current)) define(result, key, withoutNulls(value));
    // A list that replaces an object is copied unchanged.
    else define(result, key, isFields(value) ? merged(current, value) : value);
  }
  return result;
}

/** Removes fields that are null. Null elements of lists stay. */
function withoutNulls(value: unknown): unknown {
  if (isList(value)) return value.map((each) => withoutNulls(each));
  if (!isFields(value)) return value;
  const result: Record<string, unknown> = {};
  for (const [key, each] of Object.entries(value)) {
    if (each !== null) define(result, key, withoutNulls(each));
  }
  return result;
}

/**
 * The JSON merge patch (RFC 7386) from one document to another; undefined if they are equal.
 * Removes missing fields and replaces whole lists.
 */
export function createMergePatch(
  from: object,
  to: object,
): Readonly<Record<string, unknown>> | undefined {
  const patch: Record<string, unknown> = {};
  const before = { ...from };
  const after = { ...to };
  for (const key of Object.keys(before)) {
    if (lookup(after, key) === undefined) define(patch, key, null);
  }
  for (const [key, value] of Object.entries(after)) {
    if (value === undefined) continue;
    const old = lookup(before, key);
    if (isSame(old, value)) continue;
    const isInside = isFields(old) && isFields(value);
    define(patch, key, isInside ? createMergePatch(old, value) : value);
  }
  return Object.keys(patch).length === 0 ? undefined : patch;
}
