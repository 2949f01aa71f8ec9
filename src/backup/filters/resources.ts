import type { Discovery, OldLists, ScopedLists } from '../../kube/index.ts';
import { NameList, NameLists } from './name-lists.ts';
import type { NamespaceFilter } from './namespaces.ts';

/** Finds a resource by what people call it. */
export type ResourceFinder = Pick<Discovery, 'find'>;

/** `deployments.apps`; the plural alone in the core group. */
export const typeOf = (resource: { readonly group: string; readonly plural: string }): string =>
  resource.group === '' ? resource.plural : `${resource.plural}.${resource.group}`;

/** Types that a field of a spec or a policy asks for by name. */
export interface AskedTypes {
  /** As the spec has it, such as `includedResources`. */
  readonly field: string;
  readonly names: readonly string[];
  /** The only scope that the field takes; undefined for both. */
  readonly namespaced?: boolean;
  /** The field excludes types. */
  readonly isExcluded?: boolean;
}

/** Which types of objects a backup takes. Types are as {@link typeOf} writes them. */
export interface ResourceFilter {
  /** Whether objects of the type are looked for. */
  takes(type: string): boolean;
  /** Whether objects of the type are left out even where an action asks for one. */
  refuses(type: string): boolean;
  /** Types that the spec and its policies include or exclude by name. */
  readonly asked: readonly AskedTypes[];
}

const NAMESPACES_TYPE = 'namespaces';

/** Whether a spec has any of the older fields; with none at all it counts as new. */
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
  // A name that nobody knows stays as it is: it then matches nothing, and the list does not become
  // one that means everything.
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
 * Velero: pkg/util/collections, ScopeIncludesExcludes. `policy`: of the resource policies, where
 * the spec says nothing else.
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
      // The spec counts more than the policy, and in the policy what is excluded more than what is
      // included.
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

/** It is asked for each object, and there are only so many types. */
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
