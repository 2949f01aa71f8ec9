import { matchesGlob } from '../base/index.ts';
import type { IncludeExcludePolicy } from './filters.ts';

/** Filters of one scope. Names are resolved, such as `pods` or `deployments.apps`. */
export interface ScopedFilter {
  readonly includes: readonly string[];
  readonly excludes: readonly string[];
}

/**
 * Combines the Backup's filters with those of its policy; the Backup's own have priority. `resolve`
 * returns the full name of a resource, or undefined if the cluster lacks it in this scope.
 * Undefined names are dropped. Velero: pkg/util/collections/includes_excludes.go,
 * CombineWithPolicy.
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
