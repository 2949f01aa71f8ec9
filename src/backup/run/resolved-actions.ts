import { parseSelector } from '../../base/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import { NameLists } from '../filters/name-lists.ts';
import { type ResourceFinder, typeLists } from '../filters/resources.ts';
import type { ActionSelector } from './contract.ts';

/** An action with its resolved selector. */
export interface Resolved<A> {
  readonly action: A;
  /** Whether the action applies to any items of this type. */
  readonly takesType: (type: string) => boolean;
  readonly applies: (type: string, item: KubeObject) => boolean;
}

/** Throws `BAD_SELECTOR`. Velero: pkg/plugin/framework/action_resolver.go. */
export function resolveActions<A extends { readonly appliesTo: ActionSelector }>(
  actions: readonly A[],
  resources: ResourceFinder,
): Resolved<A>[] {
  return actions.map((action) => {
    const { appliesTo } = action;
    const types = typeLists(resources, appliesTo.includedResources, appliesTo.excludedResources);
    const namespaces = new NameLists(appliesTo.includedNamespaces, appliesTo.excludedNamespaces);
    const selector = parseSelector(appliesTo.selector ?? '');
    return {
      action,
      takesType: (type) => types.takes(type),
      applies: (type, { metadata: { namespace = '', labels } }) => {
        if (!types.takes(type)) return false;
        if (namespace === '' ? !namespaces.isEverything : !namespaces.takes(namespace))
          return false;
        return selector.matches(labels);
      },
    };
  });
}
