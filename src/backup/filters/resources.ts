import type { Discovery, OldLists, ScopedLists } from '../../kube/index.ts';
import { NameList, NameLists } from './name-lists.ts';
import type { NamespaceFilter } from './namespaces.ts';

/** Finds a resource by a user's name for it. */
export type ResourceFinder = Pick<Discovery, 'find'>;

/** `deployments.apps`, or only the plural in the core group. */
export const typeOf = (resource: { readonly group: string; readonly plural: string }): string =>
  resource.group === '' ? resource.plural : `${resource.plural}.${resource.group}`;

/** Types that a field of a spec or a policy names. */
export interface AskedTypes {
  /** Name of the field, such as `includedResources`. */
  readonly field: string;
  readonly names: readonly string[];
  /** The only scope that the field allows; undefined for both. */
  readonly namespaced?: boolean;
  /** True: the field excludes types. */
  readonly isExcluded?: boolean;
}

/** Selects the types of a backup. Types have the form of {@link typeOf}. */
export interface ResourceFilter {
  /** Whether to list objects of the type. */
  takes(type: string): boolean;
  /** Whether to exclude objects of the type, even additional items. */
  refuses(type: string): boolean;
  /** Types that the spec and its policies include or exclude by name. */
  readonly asked: readonly AskedTypes[];
}

const NAMESPACES_TYPE = 'namespaces';

/** Whether a spec uses any older field. A spec without lists counts as new. */
export const usesOldLists = (spec: OldLists): boolean =>
  (spec.includeClusterResources ?? undefined) !== undefined ||
  (spec.includedResources ?? []).length > 0 ||
  (spec.excludedResources ?? []).length > 0;

/** Velero: pkg/util/collections, GlobalIncludesExcludes. */
export function oldResourceFilter(
  resources: ResourceFinder,
  spec: OldLists,
  namespaces: NamespaceFilter,
): ResourceFilter {
  const { includeClusterResources: cluster } = spec;
  // Unknown names stay in the list and match nothing. Without them the list could become empty,
  // which means all types.
  const typeNamed = (name: string): string => {
    const found = resources.find(name);
    return found ? typeOf(found) : name;
  };
  const named = (list: readonly string[] | null | undefined): string[] =>
    (list ?? []).map((name) => (name === '*' ? name : typeNamed(name)));
  const lists = new NameLists(
    named(spec.includedResources),
    named(spec.excludedResources).filter((name) => name !== '*'),
  );
  return remembered({
    asked: [
      { field: 'includedResources', names: spec.includedResources ?? [] },
      { field: 'excludedResources', names: spec.excludedResources ?? [], isExcluded: true },
    ],
    takes(type) {
      const found = resources.find(type);
      if (!found) return false;
      if (!found.namespaced) {
        if (cluster === false) return false;
        const isUndecided = cluster === undefined || cluster === null;
        if (isUndecided && type !== NAMESPACES_TYPE && !namespaces.isEverything) return false;
      }
      return lists.takes(type);
    },
    refuses(type) {
      if (lists.excludes.matches(type)) return true;
      const found = resources.find(type);
      if (!found) return true;
      if (found.namespaced || cluster === true) return false;
      return cluster === false || !lists.takes(type);
    },
  });
}

/**
 * Velero: pkg/util/collections, ScopeIncludesExcludes. `policy`: filters of the resource policies,
 * which have lower priority.
 */
export function scopedResourceFilter(
  resources: ResourceFinder,
  spec: ScopedLists,
  namespaces: NamespaceFilter,
  policy?: ScopedLists,
): ResourceFilter {
  const ofScope = (list: readonly string[] | null | undefined, namespaced: boolean): string[] =>
    (list ?? []).flatMap((name) => {
      const found = name === '*' ? undefined : resources.find(name);
      if (!found) return [name];
      return found.namespaced === namespaced ? [typeOf(found)] : [];
    });
  const both = (of: ScopedLists, namespaced: boolean): [string[], string[]] =>
    namespaced
      ? [
          ofScope(of.includedNamespaceScopedResources, true),
          ofScope(of.excludedNamespaceScopedResources, true),
        ]
      : [
          ofScope(of.includedClusterScopedResources, false),
          ofScope(of.excludedClusterScopedResources, false),
        ];
  const listsOf = (namespaced: boolean): NameLists => {
    const [includes, excludes] = both(spec, namespaced);
    if (policy) {
      const [more, fewer] = both(policy, namespaced);
      const isOpen = (name: string): boolean =>
        !new NameList(includes).matches(name) && !new NameList(excludes).matches(name);
      // The spec has priority over the policy. In the policy, excludes have priority over includes.
      for (const name of fewer) if (isOpen(name)) excludes.push(name);
      for (const name of more) if (isOpen(name)) includes.push(name);
    }
    return new NameLists(includes, excludes);
  };
  const namespaced = listsOf(true);
  const cluster = listsOf(false);
  const isWhole =
    cluster.includes.isEmpty &&
    cluster.excludes.isEmpty &&
    namespaces.isEverything &&
    namespaced.isEverything;
  const askedOf = (of: ScopedLists | undefined, place: string): AskedTypes[] => [
    {
      field: `includedNamespaceScopedResources${place}`,
      names: of?.includedNamespaceScopedResources ?? [],
      namespaced: true,
    },
    {
      field: `includedClusterScopedResources${place}`,
      names: of?.includedClusterScopedResources ?? [],
      namespaced: false,
    },
    {
      field: `excludedNamespaceScopedResources${place}`,
      names: of?.excludedNamespaceScopedResources ?? [],
      namespaced: true,
      isExcluded: true,
    },
    {
      field: `excludedClusterScopedResources${place}`,
      names: of?.excludedClusterScopedResources ?? [],
      namespaced: false,
      isExcluded: true,
    },
  ];
  return remembered({
    asked: [...askedOf(spec, ''), ...askedOf(policy, ' in the resource policies')],
    takes(type) {
      const found = resources.find(type);
      if (!found) return false;
      const lists = found.namespaced ? namespaced : cluster;
      if (lists.excludes.has('*') || lists.excludes.matches(type)) return false;
      if (found.namespaced) return lists.takes(type);
      if (isWhole || type === NAMESPACES_TYPE) return true;
      return lists.includes.has('*') || lists.includes.matches(type);
    },
    refuses(type) {
      const found = resources.find(type);
      if (!found) return true;
      return (found.namespaced ? namespaced : cluster).excludes.matches(type);
    },
  });
}

/** Caches answers by type: the filter runs for each object, and types are few. */
function remembered(filter: ResourceFilter): ResourceFilter {
  const taken = new Map<string, boolean>();
  const refused = new Map<string, boolean>();
  const once = (answers: Map<string, boolean>, type: string, ask: () => boolean): boolean => {
    const known = answers.get(type);
    if (known !== undefined) return known;
    const answer = ask();
    answers.set(type, answer);
    return answer;
  };
  return {
    asked: filter.asked,
    takes: (type) => once(taken, type, () => filter.takes(type)),
    refuses: (type) => once(refused, type, () => filter.refuses(type)),
  };
}

/** Resolves resource names to types. Unknown names stay and match nothing. */
export function typeLists(
  resources: ResourceFinder,
  includes: readonly string[] | null | undefined,
  excludes: readonly string[] | null | undefined,
): NameLists {
  const named = (list: readonly string[] | null | undefined): string[] =>
    (list ?? []).map((name) => {
      const found = name === '*' ? undefined : resources.find(name);
      return found ? typeOf(found) : name;
    });
  return new NameLists(
    named(includes),
    named(excludes).filter((name) => name !== '*'),
  );
}
