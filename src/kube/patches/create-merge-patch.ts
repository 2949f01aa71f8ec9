import { define, lookup } from '../../base/index.ts';
import { isFields, isSame } from './values.ts';

/**
 * The JSON merge patch (RFC 7386) that makes one document into another; undefined where they are the same. What the second lacks is removed. Lists
 * are replaced as a whole.
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
