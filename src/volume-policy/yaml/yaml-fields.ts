import type { Node } from 'yaml';
import { nearest, orList } from '../similar-words.ts';
import { joined, type YamlDocument } from './yaml-document.ts';

/** A resolved value and its key. */
export interface Field {
  readonly node: Node | null;
  readonly keyNode: Node | null;
}

/** The fields of a map. An unknown field is a problem. */
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

/** A text of a list, with its position. */
export interface TextAt {
  readonly text: string;
  readonly node: Node | null;
  readonly path: string;
}

/** The texts of the list under a key, or empty. An element that is not text is a problem. */
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
