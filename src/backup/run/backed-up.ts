import { compareUtf8 } from '../../base/index.ts';

/** Which items are in the backup, or were found for it. Kinds are `apiVersion/Kind`, ids `namespace/name` or a name. */
export class BackedUp {
  /** True for those that are in the backup. */
  readonly #kinds = new Map<string, Map<string, boolean>>();
  #total = 0;
  #done = 0;

  get totalItems(): number {
    return this.#total;
  }

  get itemsBackedUp(): number {
    return this.#done;
  }

  has(kind: string, id: string): boolean {
    return this.#kinds.get(kind)?.get(id) === true;
  }

  /** Found for the backup, and its turn will come. */
  expect(kind: string, id: string): void {
    const ids = this.#idsOf(kind);
    if (ids.has(id)) return;
    ids.set(id, false);
    this.#total++;
  }

  add(kind: string, id: string): void {
    const ids = this.#idsOf(kind);
    const before = ids.get(id);
    if (before === true) return;
    ids.set(id, true);
    if (before === undefined) this.#total++;
    this.#done++;
  }

  /** An action, or the cluster, has taken it out again. */
  remove(kind: string, id: string): void {
    const ids = this.#idsOf(kind);
    const before = ids.get(id);
    if (before === undefined) return;
    ids.delete(id);
    this.#total--;
    if (before) this.#done--;
  }

  /** Velero's `<backup>-resource-list.json.gz`. */
  get resourceList(): Record<string, string[]> {
    const lists = [...this.#kinds].flatMap(([kind, ids]): [string, string[]][] => {
      const done = [...ids].flatMap(([id, isDone]) => (isDone ? [id] : []));
      return done.length > 0 ? [[kind, done.sort(compareUtf8)]] : [];
    });
    return Object.fromEntries(lists.sort(([a], [b]) => compareUtf8(a, b)));
  }

  #idsOf(kind: string): Map<string, boolean> {
    const known = this.#kinds.get(kind);
    if (known) return known;
    const made = new Map<string, boolean>();
    this.#kinds.set(kind, made);
    return made;
  }
}
