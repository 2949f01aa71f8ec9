import { Column, ObjectNames } from '../../base/index.ts';

interface Ref {
  /** `''` for an object without a namespace. */
  readonly namespace: string;
  readonly name: string;
}

/** Kinds with their names. Can be iterated several times. */
export type ResourceNames = Iterable<readonly [kind: string, names: Iterable<string>]>;

const OUT = 0;
const EXPECTED = 1;
const DONE = 2;

/**
 * Items that are in the backup, or are expected in it. Kinds are `apiVersion/Kind`. There may be
 * millions, so each takes one byte beside its name, which it shares with the item list.
 */
export class BackedUp {
  readonly #names: ObjectNames;
  readonly #states = new Column(Uint8Array);
  #total = 0;
  #done = 0;

  /** `names`: names of the item list, if there is one. More names are added. */
  constructor(names = new ObjectNames()) {
    this.#names = names;
  }

  /** Memory in bytes, without the names. */
  get bytes(): number {
    return this.#states.bytes;
  }

  get totalItems(): number {
    return this.#total;
  }

  get itemsBackedUp(): number {
    return this.#done;
  }

  has(kind: string, ref: Ref): boolean {
    const number = this.#names.find(kind, ref);
    return number >= 0 && this.#states.get(number) === DONE;
  }

  /** Marks a listed item, by its number in the names. The item will be handled later. */
  expect(number: number): void {
    if (this.#states.get(number) !== OUT) return;
    this.#states.set(number, EXPECTED);
    this.#total++;
  }

  add(kind: string, ref: Ref): void {
    const number = this.#names.add(kind, ref);
    const before = this.#states.get(number);
    if (before === DONE) return;
    this.#states.set(number, DONE);
    if (before === OUT) this.#total++;
    this.#done++;
  }

  /** Removes an item that an action excluded, or that the cluster no longer has. */
  remove(kind: string, ref: Ref): void {
    const number = this.#names.find(kind, ref);
    const before = number < 0 ? OUT : this.#states.get(number);
    if (before === OUT) return;
    this.#states.set(number, OUT);
    this.#total--;
    if (before === DONE) this.#done--;
  }

  /** Velero's `<backup>-resource-list.json.gz`: `namespace/name` or a name, by kind. */
  get resourceList(): ResourceNames {
    const isIn = (number: number): boolean => this.#states.get(number) === DONE;
    return { [Symbol.iterator]: () => this.#names.sorted(isIn) };
  }
}
