import { compileGlob, type LabelSelector, type Selector, selectorOf } from '../../base/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import type { BackupLog } from '../results.ts';
import { NameLists } from './name-lists.ts';
import { type ResourceFinder, typeOf } from './resources.ts';
import { MatchedFilter, type UnmatchedPart } from './unmatched-names.ts';

/** A Kubernetes LabelSelector. */
export interface FineSelector {
  readonly matchLabels?: Readonly<Record<string, string>>;
  readonly matchExpressions?: readonly {
    readonly key: string;
    readonly operator: string;
    readonly values: readonly string[];
  }[];
}

/** A filter of a resource policy, as in Velero's ConfigMap. */
export interface FineFilter {
  /** Empty, or only `*`: all kinds that no other filter names. */
  readonly kinds: readonly string[];
  readonly names: readonly string[];
  readonly excludedNames: readonly string[];
  readonly labelSelector?: FineSelector | undefined;
  readonly orLabelSelectors: readonly FineSelector[];
}

export interface FinePolicies {
  readonly clusterScopedFilterPolicy?:
    { readonly resourceFilters: readonly FineFilter[] } | undefined;
  readonly namespacedFilterPolicies?:
    | readonly {
        readonly namespaces: readonly string[];
        readonly resourceFilters: readonly FineFilter[];
      }[]
    | undefined;
}

/** Selects objects of one kind. */
interface Rule {
  readonly names: NameLists | undefined;
  /** At least one must match, if there are any. */
  readonly selectors: readonly Selector[];
  readonly matched: MatchedFilter;
}

interface Rules {
  readonly all: readonly Rule[];
  readonly byType: ReadonlyMap<string, Rule>;
  /** Rules for kinds that the cluster lacks, by lower-case kind. */
  readonly byKind: ReadonlyMap<string, Rule>;
  readonly others: Rule | undefined;
}

interface Place {
  readonly pattern: string;
  readonly matches: (namespace: string) => boolean;
  readonly isExact: boolean;
  readonly rules: Rules;
}

/**
 * Filters for single kinds and namespaces. In a namespace that a policy names, only the listed
 * kinds are included, with the policy's selectors instead of the backup's. The policy also decides
 * about listed cluster-scoped kinds; the backup decides about all other kinds. Velero:
 * pkg/backup/backup.go and item_collector.go (v1.18.3).
 */
export class FineFilters {
  readonly #cluster: Rules;
  readonly #places: readonly Place[];
  readonly #known = new Map<string, Rules | undefined>();
  /** Types with several entries in one policy: the last entry counts. */
  readonly ambiguous: readonly string[];

  private constructor(cluster: Rules, places: readonly Place[], ambiguous: readonly string[]) {
    this.#cluster = cluster;
    this.#places = places;
    this.ambiguous = ambiguous;
  }

  /** Undefined if there are no filters. Throws `BAD_SELECTOR`, `BAD_GLOB`. */
  static of(
    { clusterScopedFilterPolicy, namespacedFilterPolicies }: FinePolicies,
    resources: ResourceFinder,
    log: BackupLog,
  ): FineFilters | undefined {
    if (!clusterScopedFilterPolicy && !namespacedFilterPolicies) return undefined;
    const ambiguous: string[] = [];
    const cluster = rulesOf(clusterScopedFilterPolicy?.resourceFilters ?? [], resources, {
      log,
      namespaced: false,
      ambiguous,
      policy: 'clusterScopedFilterPolicy',
    });
    const places = (namespacedFilterPolicies ?? []).flatMap(({ namespaces, resourceFilters }) => {
      const policy = `the filter policy of ${namespaces.join(', ')}`;
      const options = { log, namespaced: true, ambiguous, policy };
      const rules = rulesOf(resourceFilters, resources, options);
      return namespaces.map((pattern): Place => {
        const isExact = !/[*?[]/.test(pattern);
        const matches = isExact ? (name: string) => name === pattern : compileGlob(pattern);
        return { pattern, matches, isExact, rules };
      });
    });
    return new FineFilters(cluster, places, ambiguous);
  }

  /** Names and patterns of namespaces in the policies. */
  get namespaces(): string[] {
    return this.#places.map(({ pattern }) => pattern);
  }

  /** Whether lists of the type must ignore the backup's own selectors. */
  isAbout(type: string, namespaced: boolean): boolean {
    return namespaced ? this.#places.length > 0 : this.#cluster.byType.has(type);
  }

  /**
   * Whether the caller must pass the objects' kind: a policy names a kind that the cluster lacks,
   * and it may be this type's kind.
   */
  asksForKind(type: string, namespace: string): boolean {
    const rules = namespace === '' ? this.#cluster : this.#rulesOf(namespace);
    return rules !== undefined && rules.byKind.size > 0 && !rules.byType.has(type);
  }

  /**
   * Whether a policy decides about objects of the type in the namespace. `kind`: required if {@link
   * FineFilters.asksForKind} returns true.
   */
  decides(type: string, namespace: string, kind?: string): boolean {
    const { rule, isKnown } = this.#ruleOf(type, namespace, kind);
    return isKnown || rule !== undefined;
  }

  /** Whether any object of the type can be included in the namespace. */
  canTake(type: string, namespace: string, kind?: string): boolean {
    const { rule, isKnown } = this.#ruleOf(type, namespace, kind);
    return !isKnown || rule !== undefined;
  }

  /** Whether to include a listed object; undefined if the backup's own selectors decide. */
  takes(
    type: string,
    namespace: string,
    labels: Readonly<Record<string, string>> | undefined,
    kind?: string,
  ): boolean | undefined {
    const { rule, isKnown } = this.#ruleOf(type, namespace, kind);
    if (!rule) return isKnown ? false : undefined;
    return rule.selectors.length === 0 || rule.selectors.some((each) => each.matches(labels));
  }

  /** Whether the name is excluded, even for additional items. */
  refusesName(type: string, namespace: string, name: string, kind?: string): boolean {
    return this.#ruleOf(type, namespace, kind).rule?.names?.takes(name) === false;
  }

  /** Notes an object of the backup or of the cluster, for {@link FineFilters.unmatched}. */
  note(type: string, { namespace = '', ...object }: KubeObject['metadata'], kind?: string): void {
    this.#ruleOf(type, namespace, kind).rule?.matched.note(type, kind, object);
  }

  /** Names, kinds and selectors without a noted object, for existing namespaces. */
  unmatched(where: 'cluster' | 'backup', existing: readonly string[]): UnmatchedPart[] {
    const places = this.#places.filter(({ matches }) => existing.some(matches));
    const rules = new Set([this.#cluster, ...places.map((place) => place.rules)]);
    return [...rules].flatMap(({ all }) => all.flatMap(({ matched }) => matched.unmatched(where)));
  }

  #ruleOf(
    type: string,
    namespace: string,
    kind?: string,
  ): { rule: Rule | undefined; isKnown: boolean } {
    const rules = namespace === '' ? this.#cluster : this.#rulesOf(namespace);
    const ofKind = kind === undefined ? undefined : rules?.byKind.get(kind.toLowerCase());
    const rule = rules?.byType.get(type) ?? ofKind ?? rules?.others;
    return { rule, isKnown: namespace !== '' && rules !== undefined };
  }

  /** An exact name has priority, then the first matching pattern. */
  #rulesOf(namespace: string): Rules | undefined {
    if (this.#known.has(namespace)) return this.#known.get(namespace);
    const found =
      this.#places.find(({ isExact, matches }) => isExact && matches(namespace)) ??
      this.#places.find(({ matches }) => matches(namespace));
    this.#known.set(namespace, found?.rules);
    return found?.rules;
  }
}

function rulesOf(
  filters: readonly FineFilter[],
  resources: ResourceFinder,
  {
    log,
    namespaced,
    ambiguous,
    policy,
  }: {
    readonly log: BackupLog;
    readonly namespaced: boolean;
    readonly ambiguous: string[];
    readonly policy: string;
  },
): Rules {
  const all: Rule[] = [];
  const byType = new Map<string, Rule>();
  const byKind = new Map<string, Rule>();
  let others: Rule | undefined;
  for (const filter of filters) {
    const rule = ruleOf(filter, policy);
    all.push(rule);
    if (filter.kinds.length === 0 || filter.kinds.includes('*')) {
      others = rule;
      continue;
    }
    for (const kind of filter.kinds) {
      const found = resources.find(kind);
      if (!found) log.warn(`The cluster has no kind "${kind}", which a filter policy names`);
      else if (found.namespaced !== namespaced) {
        const [is, meant] = namespaced
          ? ['cluster-scoped', 'clusterScopedFilterPolicy']
          : ['namespace-scoped', 'namespacedFilterPolicies'];
        log.warn(
          `kind "${kind}" of a filter policy is ${is}, and never matches: did you mean ${meant}?`,
        );
      }
      const type = found ? typeOf(found) : kind;
      if (byType.has(type)) ambiguous.push(type);
      byType.set(type, rule);
      rule.matched.addKind(kind, found?.namespaced === namespaced ? type : undefined);
      if (!found) byKind.set(kind.toLowerCase(), rule);
    }
  }
  return { all, byType, byKind, others };
}

function ruleOf(filter: FineFilter, policy: string): Rule {
  const { names, excludedNames, labelSelector, orLabelSelectors } = filter;
  const hasNames = names.length > 0 || excludedNames.length > 0;
  const selectors = [...(labelSelector ? [labelSelector] : []), ...orLabelSelectors].map(
    (selector) => selectorOf(selector as LabelSelector),
  );
  return {
    names: hasNames ? new NameLists([...names], [...excludedNames]) : undefined,
    selectors,
    matched: new MatchedFilter(policy, filter, selectors),
  };
}
