import { isSameJson, type KubeObject, type Restore, targetNamespace } from '../../kube/index.ts';
import type { BackedUpItems, ItemFile } from './contract.ts';
import { pathOf, readItem } from './item-file.ts';
import { withoutServersFields } from './object-form.ts';

/**
 * Namespaces of the backup that are restored into one. Of items that have one name and type there
 * only the first is restored, as Velero does; of the others, and of the data of their volumes,
 * somebody has to hear.
 */
export class MergedNamespaces {
  readonly #items: Pick<BackedUpItems, 'directories' | 'load'>;
  readonly #restore: Restore;
  /** Targets that several namespaces of the backup have; looked up once. */
  #merged: ReadonlySet<string> | undefined;
  /** Where the item came from that is restored, by type, target and name. */
  readonly #sources = new Map<string, string>();
  readonly #told = new Set<string>();

  constructor(items: Pick<BackedUpItems, 'directories' | 'load'>, restore: Restore) {
    this.#items = items;
    this.#restore = restore;
  }

  /** This very file is the one that is restored. */
  begin(file: ItemFile): void {
    if (this.#isMerged(file)) this.#sources.set(this.#keyOf(file), file.namespace);
  }

  /**
   * Says once of a file that is not restored what became of it. Undefined where it is the one that
   * was, or is the same as that one; also where that is not known, as of what an earlier try has
   * restored. Throws what reading the other file throws.
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

/** What is the user's of an object, wherever it is. */
function bare(object: KubeObject): KubeObject {
  const own = withoutServersFields(object);
  for (const field of ['namespace', 'managedFields']) Reflect.deleteProperty(own.metadata, field);
  return own;
}
