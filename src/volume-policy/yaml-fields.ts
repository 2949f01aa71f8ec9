import type { Node } from 'yaml';
import { nearest, orList } from './words.ts';
import { joined, type YamlDocument } from './yaml-document.ts';

/** A value under its key, resolved. */
export interface Field {
  readonly node: Node | null;
  readonly keyNode: Node | null;
}

/** The fields of a map that has no others: each other one is a problem. */
export function fieldsOf(
  document: YamlDocument,
  node: Node | null,
  path: string,
  names: readonly string[],
  what = 'a map',
): Map<string, Field> | undefined {
  const entries = document.entries(node, path, what);
  if (!entries) return undefined;
  const fields = new Map<string, Field>();
  for (const { key, keyNode, value } of entries) {
    const at = joined(path, key);
    if (names.includes(key)) fields.set(key, { node: document.resolve(value, at), keyNode });
    else if (!document.isFull) {
      const meant = nearest(key, names);
      const right =
        meant === undefined ? `what may stand here is ${orList(names)}` : `did you mean ${meant}?`;
      document.wrong(keyNode, at, `is unknown: ${right}`);
    }
  }
  return fields;
}
