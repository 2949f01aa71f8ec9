import {
  NameLists,
  type ResourceFinder,
  type Selector,
  selectorOf,
  typeLists,
} from '../../backup/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import type { Restore } from '../restore-object.ts';
import type { ItemFolder } from './contract.ts';

/** Restored whatever the lists say: they lead to the data of volumes. */
const MUST_HAVE = new Set(['datauploads.velero.io']);

/**
 * What of a backup is restored. Namespaces are those of the backup. Velero: pkg/restore/restore.go, getOrderedResourceCollection and restoreItem.
 */
export class RestoreSelection {
  readonly #cluster: boolean | undefined;
  readonly #types: NameLists;
  readonly #namespaces: NameLists;
  readonly #selectors: readonly Selector[];
  readonly #statuses: NameLists | undefined;

  /** Throws `BAD_SELECTOR`, which validation has found before. */
  constructor({ spec }: Restore, resources: ResourceFinder) {
    this.#cluster = spec.includeClusterResources ?? undefined;
    this.#types = typeLists(resources, spec.includedResources, spec.excludedResources);
    this.#namespaces = new NameLists(spec.includedNamespaces ?? [], spec.excludedNamespaces ?? []);
    const { labelSelector, orLabelSelectors, restoreStatus: status } = spec;
    this.#selectors = [...(labelSelector ? [labelSelector] : []), ...(orLabelSelectors ?? [])].map(
      selectorOf,
    );
    this.#statuses = status
      ? typeLists(resources, status.includedResources, status.excludedResources)
      : undefined;
  }

  /** Whether items have to be looked into to know whether they are taken. */
  looksAtLabels(type: string): boolean {
    return this.#selectors.length > 0 && !MUST_HAVE.has(type);
  }

  /** Why nothing of a folder is taken by itself; undefined where it is. */
  folderRefusal({ groupResource: type, namespace }: ItemFolder): string | undefined {
    if (MUST_HAVE.has(type)) return this.#clusterRefusal(namespace);
    if (!this.#types.takes(type)) {
      return 'Skipping restore of resource because the restore spec excludes it';
    }
    if (namespace !== '') {
      return this.#namespaces.takes(namespace) ? undefined : `Skipping namespace ${namespace}`;
    }
    return this.#clusterRefusal(namespace);
  }

  #clusterRefusal(namespace: string): string | undefined {
    if (namespace !== '' || this.#cluster === true) return undefined;
    if (this.#cluster === false) return "Skipping resource because it's cluster-scoped";
    return this.#namespaces.isEverything
      ? undefined
      : "Skipping resource because it's cluster-scoped and only specific namespaces are included in the restore";
  }

  /** A label selector, or any of several. */
  takesLabels(labels: KubeObject['metadata']['labels']): boolean {
    return this.#selectors.some((selector) => selector.matches(labels));
  }

  /** Why an item is not restored, also where an action asks for it; undefined where it is. */
  itemRefusal(type: string, namespace: string): string | undefined {
    if (!this.#types.takes(type) && !MUST_HAVE.has(type)) {
      return 'Not restoring item because resource is excluded';
    }
    if (namespace !== '') {
      return this.#namespaces.takes(namespace) || MUST_HAVE.has(type)
        ? undefined
        : 'Not restoring item because namespace is excluded';
    }
    return this.#cluster === false ? "Not restoring item because it's cluster-scoped" : undefined;
  }

  /** Whether the spec wants the status of its items restored. */
  takesStatus(type: string): boolean {
    return this.#statuses?.takes(type) ?? false;
  }
}
