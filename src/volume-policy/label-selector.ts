import type { Node } from 'yaml';
import { cut, joined, type YamlDocument } from './yaml-document.ts';
import { fieldsOf, textsAt } from './yaml-fields.ts';

export interface PolicyLabelSelector {
  readonly matchLabels: Readonly<Record<string, string>>;
  readonly matchExpressions: readonly {
    readonly key: string;
    readonly operator: string;
    readonly values: readonly string[];
  }[];
}

const OPERATORS = ['In', 'NotIn', 'Exists', 'DoesNotExist'];

/** Undefined for one that says nothing, as in Velero. */
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
    if (!OPERATORS.includes(operator))
      wrong(
        `the operator is In, NotIn, Exists or DoesNotExist, and not ${JSON.stringify(cut(operator))}`,
      );
    else if (operator.endsWith('In') && values.length === 0) wrong(`${operator} needs values`);
    else if (!operator.endsWith('In') && values.length > 0) wrong(`${operator} takes no values`);
    checkLabel(document, { key, values, node: each.node, path: each.path });
    return [{ key, operator, values }];
  });
  const isEmpty = Object.keys(matchLabels).length === 0 && matchExpressions.length === 0;
  return isEmpty ? undefined : { matchLabels, matchExpressions };
}

const LABEL_NAME = /^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/;
const PREFIX = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;

function checkLabel(
  document: YamlDocument,
  {
    key,
    values,
    node,
    path,
  }: { key: string; values: readonly string[]; node: Node | null; path: string },
): void {
  const [name = '', prefix, ...more] = key.split('/').reverse();
  const isKey =
    LABEL_NAME.test(name) &&
    more.length === 0 &&
    (prefix === undefined || (prefix.length <= 253 && PREFIX.test(prefix)));
  if (!isKey) document.wrong(node, path, `${JSON.stringify(cut(key))} is no key of a label`);
  for (const value of values) {
    if (value === '' || LABEL_NAME.test(value)) continue;
    document.wrong(node, path, `${JSON.stringify(cut(value))} is no value of a label`);
  }
}
