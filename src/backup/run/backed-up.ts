import { compareUtf8 } from '../../base/index.ts';

interface Ref {
  /** `''` for an object without a namespace. */
  readonly namespace: string;
  readonly name: string;
}

/** By name: true for those that are in the backup. */
type Names = Map<string, boolean>;

/**
 * Which items are in the backup, or were found for it. Kinds are `apiVersion/Kind`. There may be hundreds of thousands, so that names are kept as
 * the items have them, and none is made of two.
 */
export class BackedUp {
  readonly #kinds = new Map<string, Map<string, Names>>();
  #total = 0;
  #done = 0;

  get totalItems(): number {
    return this.#total;
  }

  get itemsBackedUp(): number {
    return this.#done;
  }

  has(kind: string, { namespace, name }: Ref): boolean {
    return this.#kinds.get(kind)?.get(namespace)?.get(name) === true;
  }

  /** Found for the backup, and its turn will come. */
  expect(kind: string, { namespace, name }: Ref): void {
    const names = this.#namesOf(kind, namespace);
    if (names.has(name)) return;
    names.set(name, false);
    this.#total++;
  }

  add(kind: string, { namespace, name }: Ref): void {
    const names = this.#namesOf(kind, namespace);
    const before = names.get(name);
    if (before === true) return;
    names.set(name, true);
    if (before === undefined) this.#total++;
    this.#done++;
  }

  /** An action, or the cluster, has taken it out again. */
  remove(kind: string, { namespace, name }: Ref): void {
    const names = this.#namesOf(kind, namespace);
    const before = names.get(name);
    if (before === undefined) return;
    names.delete(name);
    this.#total--;
    if (before) this.#done--;
  }

  /** Velero's `<backup>-resource-list.json.gz`: by kind, `namespace/name` or a name. */
  get resourceList(): Record<string, string[]> {
    const lists = [...this.#kinds].flatMap(([kind, spaces]): [string, string[]][] => {
      const done: string[] = [];
      for (const [namespace, names] of spaces) {
        const prefix = namespace === '' ? '' : `${namespace}/`;
        for (const [name, isDone] of names) if (isDone) done.push(`${prefix}${name}`);
      }
      return done.length > 0 ? [[kind, done.sort(compareUtf8)]] : [];
    });
    return Object.fromEntries(lists.sort(([a], [b]) => compareUtf8(a, b)));
  }

  #namesOf(kind: string, namespace: string): Names {
    let spaces = this.#kinds.get(kind);
    if (!spaces) this.#kinds.set(kind, (spaces = new Map<string, Names>()));
    let names = spaces.get(namespace);
    if (!names) spaces.set(namespace, (names = new Map<string, boolean>()));
    return names;
  }
}
