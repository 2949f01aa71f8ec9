import { isSameJson, type KubeObject, type Restore, targetNamespace } from '../../kube/index.ts';
import type { BackedUpItems, ItemFile } from './contract.ts';
import { pathOf, readItem } from './item-file.ts';
import { withoutServersFields } from './object-fields.ts';

/**
 * Namespaces of the backup that map to the same target. If two items have the same type and name
 * there, only the first is restored, as in Velero. The user is warned about the others, and about
 * the data of their volumes.
 */
export class MergedNamespaces {
  readonly #items: Pick<BackedUpItems, 'directories' | 'load'>;
  readonly #restore: Restore;
  /** Targets of several namespaces of the backup. Computed once. */
  #merged: ReadonlySet<string> | undefined;
  /** The source namespace of each restored item, by type, target and name. */
  readonly #sources = new Map<string, string>();
  readonly #told = new Set<string>();

  constructor(items: Pick<BackedUpItems, 'directories' | 'load'>, restore: Restore) {
    this.#items = items;
    this.#restore = restore;
  }

  /** Records the file that is restored. */
  begin(file: ItemFile): void {
    if (this.#isMerged(file)) this.#sources.set(this.#keyOf(file), file.namespace);
  }

  /**
   * Explains once why a file is not restored. Undefined if the file itself was restored, or an
   * equal one. Also undefined if an earlier try restored the item. Throws errors of reading the
   * other file.
   */
  async problemOf(file: ItemFile, given: KubeObject): Promise<string | undefined> {
    const source = this.#sources.get(this.#keyOf(file));
    const path = pathOf(file);
    if (source === undefined || source === file.namespace || this.#told.has(path)) return undefined;
    const other = { ...file, namespace: source };
    const bytes = await this.#items.load(other);
    if (!bytes || isSameJson(bare(readItem(other, bytes)), bare(given))) return undefined;
    this.#told.add(path);
    const target = targetNamespace(file.namespace, this.#restore);
    return `could not restore, ${given.kind ?? ''} ${JSON.stringify(file.name)} of namespace ${file.namespace}: namespace ${source} has another one of this name, and both are restored into ${target}`;
  }

  #isMerged({ namespace }: ItemFile): boolean {
    if (namespace === '') return false;
    this.#merged ??= this.#findMerged();
    return this.#merged.has(targetNamespace(namespace, this.#restore));
  }

  #findMerged(): ReadonlySet<string> {
    const { namespaceMapping } = this.#restore.spec;
    if (Object.keys(namespaceMapping ?? {}).length === 0) return new Set();
    const sources = new Map<string, string>();
    const merged = new Set<string>();
    for (const { namespace } of this.#items.directories()) {
      if (namespace === '') continue;
      const target = targetNamespace(namespace, this.#restore);
      const source = sources.get(target) ?? namespace;
      if (source !== namespace) merged.add(target);
      sources.set(target, source);
    }
    return merged;
  }

  #keyOf({ groupResource, namespace, name }: ItemFile): string {
    return `${groupResource}/${targetNamespace(namespace, this.#restore)}/${name}`;
  }
}

/** The fields that a user set, without the namespace. */
function bare(object: KubeObject): KubeObject {
  const own = withoutServersFields(object);
  for (const field of ['namespace', 'managedFields']) Reflect.deleteProperty(own.metadata, field);
  return own;
}
