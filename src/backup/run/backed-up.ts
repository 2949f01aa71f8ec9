import { Column, ObjectNames } from '../../base/index.ts';

interface Ref {
  /** `''` for an object without a namespace. */
  readonly namespace: string;
  readonly name: string;
}

/** Kinds with their names, which may be read as often as wanted. */
export type ResourceNames = Iterable<readonly [kind: string, names: Iterable<string>]>;

const OUT = 0;
const EXPECTED = 1;
const DONE = 2;

/**
 * Which items are in the backup, or were found for it. Kinds are `apiVersion/Kind`. There may be
 * millions, so that this has a byte for each beside its name, which the list of items has, too.
 */
export class BackedUp {
  readonly #names: ObjectNames;
  readonly #states = new Column(Uint8Array);
  #total = 0;
  #done = 0;

  /** `names`: those of the list of items, where there is one; more are added. */
  constructor(names = new ObjectNames()) {
    this.#names = names;
  }

  /** What it takes of memory beside the names. */
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

  /** Found for the backup, and its turn will come. By its number among the names. */
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

  /** An action, or the cluster, has taken it out again. */
  remove(kind: string, ref: Ref): void {
    const number = this.#names.find(kind, ref);
    const before = number < 0 ? OUT : this.#states.get(number);
    if (before === OUT) return;
    this.#states.set(number, OUT);
    this.#total--;
    if (before === DONE) this.#done--;
  }

  /** Velero's `<backup>-resource-list.json.gz`: by kind, `namespace/name` or a name. */
  get resourceList(): ResourceNames {
    const isIn = (number: number): boolean => this.#states.get(number) === DONE;
    return { [Symbol.iterator]: () => this.#names.sorted(isIn) };
  }
}
