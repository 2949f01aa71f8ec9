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

/** A text of a list, and where it stands. */
export interface TextAt {
  readonly text: string;
  readonly node: Node | null;
  readonly path: string;
}

/**
 * The texts of the list under a key; what is no text is a problem. Empty where there is no list.
 */
export function textsAt(
  document: YamlDocument,
  fields: ReadonlyMap<string, Field> | undefined,
  key: string,
  path: string,
): TextAt[] {
  const node = fields?.get(key)?.node ?? null;
  const elements = document.elements(node, `${path}.${key}`, 'a list of texts') ?? [];
  return elements.flatMap((element) =>
    document.isNull(element.node)
      ? []
      : [{ ...element, text: document.text(element.node, element.path) ?? '' }],
  );
}
