import type { Node } from 'yaml';
import { isLabelKey, isLabelValue, LABEL_OPERATORS, takesValues } from '../base/index.ts';
import { cut, joined, type YamlDocument } from './yaml/yaml-document.ts';
import { fieldsOf, textsAt } from './yaml/yaml-fields.ts';

export interface PolicyLabelSelector {
  readonly matchLabels: Readonly<Record<string, string>>;
  readonly matchExpressions: readonly {
    readonly key: string;
    readonly operator: string;
    readonly values: readonly string[];
  }[];
}

/** Undefined for an empty selector, as in Velero. */
export function readLabelSelector(
  document: YamlDocument,
  node: Node | null,
  path: string,
): PolicyLabelSelector | undefined {
  if (document.isNull(node)) return undefined;
  const fields = fieldsOf(document, node, path, ['matchLabels', 'matchExpressions']);
  if (!fields) return undefined;
  const matchLabels: Record<string, string> = {};
  const labels = fields.get('matchLabels')?.node ?? null;
  for (const { key, keyNode, value } of document.entries(labels, `${path}.matchLabels`) ?? []) {
    const at = joined(`${path}.matchLabels`, key);
    const resolved = document.resolve(value, at);
    const text = document.text(resolved, at) ?? '';
    checkLabel(document, { key, values: [text], node: keyNode, path: at });
    Object.defineProperty(matchLabels, key, { value: text, enumerable: true });
  }
  const list = fields.get('matchExpressions')?.node ?? null;
  const expressions = document.elements(list, `${path}.matchExpressions`) ?? [];
  const matchExpressions = expressions.flatMap((each) => {
    const own = fieldsOf(document, each.node, each.path, ['key', 'operator', 'values']);
    if (!own || document.isNull(each.node)) return [];
    const text = (name: string): string =>
      document.text(own.get(name)?.node ?? null, `${each.path}.${name}`) ?? '';
    const [key, operator] = [text('key'), text('operator')];
    const values = textsAt(document, own, 'values', each.path).map((value) => value.text);
    const wrong = (what: string): void => {
      document.wrong(each.node, each.path, what);
    };
    if (!LABEL_OPERATORS.some((known) => known === operator))
      wrong(
        `the operator is In, NotIn, Exists or DoesNotExist, and not ${JSON.stringify(cut(operator))}`,
      );
    else if (takesValues(operator) && values.length === 0) wrong(`${operator} needs values`);
    else if (!takesValues(operator) && values.length > 0) wrong(`${operator} takes no values`);
    checkLabel(document, { key, values, node: each.node, path: each.path });
    return [{ key, operator, values }];
  });
  const isEmpty = Object.keys(matchLabels).length === 0 && matchExpressions.length === 0;
  return isEmpty ? undefined : { matchLabels, matchExpressions };
}

function checkLabel(
  document: YamlDocument,
  {
    key,
    values,
    node,
    path,
  }: { key: string; values: readonly string[]; node: Node | null; path: string },
): void {
  if (!isLabelKey(key))
    document.wrong(node, path, `${JSON.stringify(cut(key))} is no key of a label`);
  for (const value of values) {
    if (isLabelValue(value)) continue;
    document.wrong(node, path, `${JSON.stringify(cut(value))} is no value of a label`);
  }
}
