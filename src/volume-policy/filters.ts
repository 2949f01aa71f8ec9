import type { Node } from 'yaml';
import { matchesGlob } from '../base/index.ts';
import { cut, joined, type YamlDocument } from './yaml-document.ts';
import { type Field, fieldsOf } from './yaml-fields.ts';

/** Which resources a backup takes, as the fields of the same names in a Backup. */
export interface IncludeExcludePolicy {
  readonly includedClusterScopedResources: readonly string[];
  readonly excludedClusterScopedResources: readonly string[];
  readonly includedNamespaceScopedResources: readonly string[];
  readonly excludedNamespaceScopedResources: readonly string[];
}

export interface PolicyLabelSelector {
  readonly matchLabels: Readonly<Record<string, string>>;
  readonly matchExpressions: readonly {
    readonly key: string;
    readonly operator: string;
    readonly values: readonly string[];
  }[];
}

export interface ResourceFilter {
  /** None, or `*` alone: all kinds that no other filter of the policy names. */
  readonly kinds: readonly string[];
  readonly names: readonly string[];
  readonly excludedNames: readonly string[];
  readonly labelSelector?: PolicyLabelSelector | undefined;
  readonly orLabelSelectors: readonly PolicyLabelSelector[];
}

/** The parts of a document that are not about volumes. They are checked here, and used by whoever collects items. */
export interface FilterPolicies {
  readonly includeExcludePolicy?: IncludeExcludePolicy | undefined;
  readonly clusterScopedFilterPolicy?:
    { readonly resourceFilters: readonly ResourceFilter[] } | undefined;
  readonly namespacedFilterPolicies?:
    | readonly {
        readonly namespaces: readonly string[];
        readonly resourceFilters: readonly ResourceFilter[];
      }[]
    | undefined;
}

export function readFilters(
  document: YamlDocument,
  root: ReadonlyMap<string, Field>,
): FilterPolicies {
  const node = (key: string): Node | null => root.get(key)?.node ?? null;
  return {
    includeExcludePolicy: readIncludeExclude(document, node('includeExcludePolicy')),
    clusterScopedFilterPolicy: readClusterScoped(document, node('clusterScopedFilterPolicy')),
    namespacedFilterPolicies: readNamespaced(document, node('namespacedFilterPolicies')),
  };
}

const SCOPES = ['ClusterScopedResources', 'NamespaceScopedResources'] as const;

function readIncludeExclude(
  document: YamlDocument,
  node: Node | null,
): IncludeExcludePolicy | undefined {
  if (document.isNull(node)) return undefined;
  const path = 'includeExcludePolicy';
  const names = SCOPES.flatMap((scope) => [`included${scope}`, `excluded${scope}`]);
  const fields = fieldsOf(document, node, path, names);
  if (!fields) return undefined;
  const lists = Object.fromEntries(
    names.map((name) => [name, textsAt(document, fields, name, path)]),
  );
  for (const scope of SCOPES) {
    const included = lists[`included${scope}`] ?? [];
    const excluded = lists[`excluded${scope}`] ?? [];
    for (const { text, node: at, path: where } of [...included, ...excluded]) {
      if (text === '*')
        document.wrong(at, where, '"*" cannot be used in a policy: name the resources');
    }
    for (const { text, node: at, path: where } of excluded) {
      if (text !== '*' && included.some((each) => each.text === text)) {
        document.wrong(
          at,
          where,
          `${JSON.stringify(cut(text))} is both included and excluded; keep one`,
        );
      }
    }
  }
  const texts = (name: string): string[] => (lists[name] ?? []).map(({ text }) => text);
  return {
    includedClusterScopedResources: texts('includedClusterScopedResources'),
    excludedClusterScopedResources: texts('excludedClusterScopedResources'),
    includedNamespaceScopedResources: texts('includedNamespaceScopedResources'),
    excludedNamespaceScopedResources: texts('excludedNamespaceScopedResources'),
  };
}

interface TextAt {
  readonly text: string;
  readonly node: Node | null;
  readonly path: string;
}

function textsAt(
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

function readClusterScoped(
  document: YamlDocument,
  node: Node | null,
): FilterPolicies['clusterScopedFilterPolicy'] {
  if (document.isNull(node)) return undefined;
  const path = 'clusterScopedFilterPolicy';
  const fields = fieldsOf(document, node, path, ['resourceFilters']);
  if (!fields) return undefined;
  const { filters, catchAlls } = readResourceFilters(document, fields, path);
  if (filters.length === 0) {
    document.wrong(
      node,
      `${path}.resourceFilters`,
      'is empty: list a filter, or remove the policy',
    );
  }
  for (const each of catchAlls) {
    document.wrong(
      each.node,
      each.path,
      'must name kinds: a filter for all kinds is for namespaces only',
    );
  }
  return { resourceFilters: filters };
}

function readNamespaced(
  document: YamlDocument,
  node: Node | null,
): FilterPolicies['namespacedFilterPolicies'] {
  if (document.isNull(node)) return undefined;
  const seen = new Map<string, string>();
  const elements = document.elements(node, 'namespacedFilterPolicies', 'a list of policies') ?? [];
  return elements.flatMap((element) => {
    if (document.isNull(element.node)) return [];
    const { path } = element;
    const fields = fieldsOf(document, element.node, path, ['namespaces', 'resourceFilters']);
    if (!fields) return [];
    const namespaces = textsAt(document, fields, 'namespaces', path);
    if (namespaces.length === 0) {
      document.wrong(element.node, `${path}.namespaces`, 'is empty: name at least one namespace');
    }
    for (const each of namespaces) checkNamespace(document, each, seen);
    const { filters, catchAlls } = readResourceFilters(document, fields, path);
    if (filters.length === 0) {
      document.wrong(element.node, `${path}.resourceFilters`, 'is empty: list at least one filter');
    }
    for (const each of catchAlls.slice(1)) {
      document.wrong(each.node, each.path, 'only one filter of a policy may be for all kinds');
    }
    for (const each of catchAlls) {
      if (!each.hasNames) continue;
      document.wrong(
        each.node,
        each.path,
        'a filter for all kinds cannot have names or excludedNames',
      );
    }
    return [{ namespaces: namespaces.map(({ text }) => text), resourceFilters: filters }];
  });
}

function checkNamespace(
  document: YamlDocument,
  { text, node, path }: TextAt,
  seen: Map<string, string>,
): void {
  const before = seen.get(text);
  if (before !== undefined) {
    document.wrong(node, path, `${JSON.stringify(cut(text))} stands in ${before} too; keep one`);
  } else seen.set(text, path);
  const problem = patternProblem(text);
  if (problem !== undefined) document.wrong(node, path, `${JSON.stringify(cut(text))} ${problem}`);
}

/** Velero: pkg/util/wildcard/expand.go, ValidateNamespaceName. */
export function patternProblem(text: string): string | undefined {
  const letter = /[|()!{},]/.exec(text)?.[0];
  if (letter !== undefined) return `has a ${letter}: a pattern has only *, ? and [abc]`;
  if (text.includes('**')) return 'has two * in a row: write one';
  return bracketProblem(text);
}

function bracketProblem(text: string): string | undefined {
  const rest = text.replaceAll(BRACKETS, '');
  if (rest.includes('[]')) return 'has empty brackets: put letters into them';
  if (rest.includes('[')) return 'has a [ without a ]';
  if (rest.includes(']')) return 'has a ] without a [';
  return undefined;
}

const BRACKETS = /\[([^\]]+)\]/g;

/** Globs of github.com/gobwas/glob, which forgives all but brackets. */
function globProblem(text: string): string | undefined {
  const plain = text.replaceAll(/\\./g, '');
  const problem = bracketProblem(plain);
  if (problem !== undefined && !problem.startsWith('has a ]')) return problem;
  for (const [all, inside = ''] of plain.matchAll(BRACKETS)) {
    const [low = '', dash, high = ''] = inside.replace(/^!/, '');
    const isRange = dash === '-';
    if (low === '') return `has ${all} without a letter`;
    if (isRange && (inside.replace(/^!/, '').length !== 3 || high < low)) {
      return `has ${all}, which is no range: write one such as [a-c]`;
    }
  }
  return undefined;
}

interface CatchAll {
  readonly node: Node | null;
  readonly path: string;
  readonly hasNames: boolean;
}

const FILTER_FIELDS = ['kinds', 'names', 'excludedNames', 'labelSelector', 'orLabelSelectors'];

function readResourceFilters(
  document: YamlDocument,
  fields: ReadonlyMap<string, Field>,
  path: string,
): { filters: ResourceFilter[]; catchAlls: CatchAll[] } {
  const list = fields.get('resourceFilters')?.node ?? null;
  const elements = document.elements(list, `${path}.resourceFilters`, 'a list of filters') ?? [];
  const seen = new Map<string, string>();
  const catchAlls: CatchAll[] = [];
  const filters = elements.flatMap((element) => {
    if (document.isNull(element.node)) return [];
    const { node, path: at } = element;
    const own = fieldsOf(document, node, at, FILTER_FIELDS);
    if (!own) return [];
    const kinds = textsAt(document, own, 'kinds', at);
    for (const { text, node: where, path: kindPath } of kinds) {
      const before = seen.get(text);
      if (text !== '*' && before !== undefined) {
        document.wrong(
          where,
          kindPath,
          `${JSON.stringify(cut(text))} stands in ${before} too; keep one`,
        );
      }
      seen.set(text, kindPath);
    }
    const names = readNames(document, own, 'names', at);
    const excludedNames = readNames(document, own, 'excludedNames', at);
    if (kinds.length === 0 || (kinds.length === 1 && kinds[0]?.text === '*')) {
      catchAlls.push({ node, path: at, hasNames: names.length > 0 || excludedNames.length > 0 });
    }
    const labelSelector = readSelector(
      document,
      own.get('labelSelector')?.node ?? null,
      `${at}.labelSelector`,
    );
    const others = document.elements(
      own.get('orLabelSelectors')?.node ?? null,
      `${at}.orLabelSelectors`,
    );
    const orLabelSelectors = (others ?? []).flatMap(
      (each) => readSelector(document, each.node, each.path) ?? [],
    );
    if (labelSelector && (others ?? []).length > 0) {
      document.wrong(
        own.get('orLabelSelectors')?.keyNode,
        at,
        'has both labelSelector and orLabelSelectors; keep one',
      );
    }
    return [
      {
        kinds: kinds.map(({ text }) => text),
        names,
        excludedNames,
        labelSelector,
        orLabelSelectors,
      },
    ];
  });
  return { filters, catchAlls };
}

function readNames(
  document: YamlDocument,
  fields: ReadonlyMap<string, Field>,
  key: string,
  path: string,
): string[] {
  return textsAt(document, fields, key, path).map(({ text, node, path: at }) => {
    const problem = globProblem(text);
    if (problem !== undefined) document.wrong(node, at, `${JSON.stringify(cut(text))} ${problem}`);
    return text;
  });
}

const OPERATORS = ['In', 'NotIn', 'Exists', 'DoesNotExist'];

/** Undefined for one that says nothing, as in Velero. */
function readSelector(
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

/** The resource filters of a backup, of one scope. Names are resolved, such as `pods` or `deployments.apps`. */
export interface ScopedFilter {
  readonly includes: readonly string[];
  readonly excludes: readonly string[];
}

/**
 * The filters of a backup with those of its policy: what the Backup says itself counts more. `resolve` gives the full name of a resource,
 * or undefined for one that the cluster does not have in this scope, which is left out.
 * Velero: pkg/util/collections/includes_excludes.go, CombineWithPolicy.
 */
export function combineWithPolicy(
  own: { readonly cluster: ScopedFilter; readonly namespaced: ScopedFilter },
  policy: IncludeExcludePolicy,
  resolve: (name: string, isNamespaced: boolean) => string | undefined,
): { cluster: ScopedFilter; namespaced: ScopedFilter } {
  const combine = (
    { includes, excludes }: ScopedFilter,
    more: { readonly included: readonly string[]; readonly excluded: readonly string[] },
    isNamespaced: boolean,
  ): ScopedFilter => {
    const result = { includes: [...includes], excludes: [...excludes] };
    const isSaid = (name: string): boolean =>
      [...result.includes, ...result.excludes].some((each) => matchesGlob(each, name));
    const add = (names: readonly string[], to: string[]): void => {
      for (const name of names) {
        const full = resolve(name, isNamespaced);
        if (full !== undefined && !isSaid(full)) to.push(full);
      }
    };
    add(more.excluded, result.excludes);
    add(more.included, result.includes);
    return result;
  };
  const cluster = {
    included: policy.includedClusterScopedResources,
    excluded: policy.excludedClusterScopedResources,
  };
  const namespaced = {
    included: policy.includedNamespaceScopedResources,
    excluded: policy.excludedNamespaceScopedResources,
  };
  return {
    cluster: combine(own.cluster, cluster, false),
    namespaced: combine(own.namespaced, namespaced, true),
  };
}
