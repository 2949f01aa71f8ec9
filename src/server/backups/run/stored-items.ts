import { idOf, refOf } from '../../../backup/index.ts';
import { Column, ObjectNames } from '../../../base/index.ts';

/** Items that tries of a backup have done. Millions of items take a few bytes each. */
export class StoredItems {
  /**
   * Keys are kind and id. Values are indexes into `#types` plus one, or 0 if the item is not in the
   * archive.
   */
  readonly #items = new ObjectNames();
  readonly #typeOf = new Column(Uint16Array);
  readonly #types: string[] = [];
  /** Kinds of the types in the archive. */
  readonly #kindsOf = new Map<string, Set<string>>();
  /** Types with ids that actions have changed. */
  readonly #renamed = new Set<string>();

  /** `type` is set for items in the archive. `as` is the id there, if an action has changed it. */
  add(item: {
    readonly kind: string;
    readonly namespace: string;
    readonly name: string;
    readonly type: string | undefined;
    readonly as: string | undefined;
  }): void {
    const { kind, namespace, name, type, as } = item;
    this.#note(kind, namespace, name, type);
    if (type !== undefined) this.#noteName(type, kind, as);
  }

  has(kind: string, id: string): boolean {
    return this.#items.find(kind, refOf(id)) >= 0;
  }

  isNameTaken(type: string, id: string): boolean {
    if (this.#renamed.has(`${type} ${id}`)) return true;
    const kinds = this.#kindsOf.get(type);
    const isOfType = (kind: string): boolean => {
      const number = this.#items.find(kind, refOf(id));
      return number >= 0 && this.#typeOfDone(number) === type;
    };
    return kinds?.values().some(isOfType) === true;
  }

  *all(): Generator<{ kind: string; id: string; type: string | undefined }> {
    for (let number = 0; number < this.#items.size; number++) {
      const [namespace, name] = [this.#items.namespaceOf(number), this.#items.nameOf(number)];
      const [kind, id] = [this.#items.kindOf(number), idOf({ namespace, name })];
      yield { kind, id, type: this.#typeOfDone(number) };
    }
  }

  #note(kind: string, namespace: string, name: string, type: string | undefined): void {
    const number = this.#items.add(kind, { namespace, name });
    let typeNumber = 0;
    if (type !== undefined) {
      const known = this.#types.lastIndexOf(type) + 1;
      typeNumber = known > 0 ? known : this.#types.push(type);
    }
    this.#typeOf.set(number, typeNumber);
  }

  #typeOfDone(number: number): string | undefined {
    return this.#types[this.#typeOf.get(number) - 1];
  }

  #noteName(type: string, kind: string, as: string | undefined): void {
    let kinds = this.#kindsOf.get(type);
    if (!kinds) this.#kindsOf.set(type, (kinds = new Set()));
    kinds.add(kind);
    if (as !== undefined) this.#renamed.add(`${type} ${as}`);
  }
}
