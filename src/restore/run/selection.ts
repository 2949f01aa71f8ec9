import {
  type FineFilters,
  MatchedSelectors,
  NameLists,
  type ResourceFinder,
  typeLists,
  type UnmatchedPart,
} from '../../backup/index.ts';
import { type Selector, selectorOf } from '../../base/index.ts';
import type { KubeObject, Restore } from '../../kube/index.ts';
import type { ItemFolder } from './contract.ts';

/** Always restored, because they lead to the data of volumes. */
const MUST_HAVE = new Set(['datauploads.velero.io']);

/**
 * Selects items of a backup. Namespaces are those of the backup. Velero: pkg/restore/restore.go,
 * getOrderedResourceCollection and restoreItem.
 */
export class RestoreSelection {
  readonly #cluster: boolean | undefined;
  readonly #types: NameLists;
  readonly #namespaces: NameLists;
  readonly #selectors: readonly Selector[];
  readonly #matched: MatchedSelectors;
  readonly #statuses: NameLists | undefined;
  readonly #fine: FineFilters | undefined;

  /**
   * `fine`: filters of the Restore's policies. Throws `BAD_SELECTOR`, as validation does before.
   */
  constructor({ spec }: Restore, resources: ResourceFinder, fine?: FineFilters) {
    this.#fine = fine;
    this.#cluster = spec.includeClusterResources ?? undefined;
    this.#types = typeLists(resources, spec.includedResources, spec.excludedResources);
    this.#namespaces = new NameLists(spec.includedNamespaces ?? [], spec.excludedNamespaces ?? []);
    const { labelSelector, orLabelSelectors, restoreStatus: status } = spec;
    this.#selectors = [...(labelSelector ? [labelSelector] : []), ...(orLabelSelectors ?? [])].map(
      selectorOf,
    );
    this.#matched = new MatchedSelectors(this.#selectors);
    this.#statuses = status
      ? typeLists(resources, status.includedResources, status.excludedResources)
      : undefined;
  }

  /** Whether the kind of a folder's items is needed: a policy names a kind unknown here. */
  asksForKind({ groupResource: type, namespace }: ItemFolder): boolean {
    return !MUST_HAVE.has(type) && this.#fine?.asksForKind(type, namespace) === true;
  }

  /** Label selectors of the spec, and which of them an item has matched. */
  get selectors(): readonly Selector[] {
    return this.#selectors;
  }

  get matchedSelectors(): ReadonlySet<string> {
    return this.#matched.texts;
  }

  /** Namespaces in the policies of the restore. */
  get policyNamespaces(): readonly string[] {
    return this.#fine?.namespaces ?? [];
  }

  /** Parts of the restore's policies that match no item of the backup. */
  unmatchedPolicies(existing: readonly string[]): readonly UnmatchedPart[] {
    return this.#fine?.unmatched('backup', existing) ?? [];
  }

  /** Whether the items themselves decide, so that they must be read. */
  looksAtItems({ groupResource: type, namespace }: ItemFolder, kind?: string): boolean {
    if (MUST_HAVE.has(type)) return false;
    return this.#fine?.decides(type, namespace, kind) === true || this.#selectors.length > 0;
  }

  /** Why no item of a folder is selected; undefined if the folder is included. */
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

  /** Why the policies leave out a whole folder; undefined if they do not. */
  policyRefusal({ groupResource: type, namespace }: ItemFolder, kind?: string): string | undefined {
    if (MUST_HAVE.has(type) || this.#fine?.canTake(type, namespace, kind) !== false)
      return undefined;
    return `Skipping resource ${type} in namespace ${namespace}: not in resourceFilters`;
  }

  #clusterRefusal(namespace: string): string | undefined {
    if (namespace !== '' || this.#cluster === true) return undefined;
    if (this.#cluster === false) return "Skipping resource because it's cluster-scoped";
    return this.#namespaces.isEverything
      ? undefined
      : "Skipping resource because it's cluster-scoped and only specific namespaces are included in the restore";
  }

  /**
   * A policy for the type and namespace decides. Without one, a label selector must match, or any
   * of several. Additional items of actions always pass.
   */
  takesItem(
    { groupResource: type, namespace }: ItemFolder,
    { metadata }: KubeObject,
    kind?: string,
  ): boolean {
    const { name, labels } = metadata;
    this.#fine?.note(type, { ...metadata, namespace }, kind);
    const byPolicy = this.#fine?.takes(type, namespace, labels, kind);
    if (byPolicy !== undefined)
      return byPolicy && this.#fine?.refusesName(type, namespace, name, kind) !== true;
    this.#matched.note(labels);
    return (
      this.#selectors.length === 0 || this.#selectors.some((selector) => selector.matches(labels))
    );
  }

  /** Why an item is not restored, even as an additional item; undefined if it is. */
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

  /** Whether the spec restores the status of these items. */
  takesStatus(type: string): boolean {
    return this.#statuses?.takes(type) ?? false;
  }
}
