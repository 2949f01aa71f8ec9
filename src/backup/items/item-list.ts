import { Column, ObjectNames } from '../../base/index.ts';
import { apiVersionOf, type ServedResource } from '../../kube/index.ts';
import { typeOf } from '../filters/resources.ts';
import { type Item, refOf } from './item.ts';
import type { SpoolPlace } from './spool.ts';

interface Kind {
  readonly resource: ServedResource;
  readonly type: string;
  readonly kind: string;
}

const VOID = 1;
const ORDERED = 2;
const TAKEN = 4;

/**
 * The items of a backup in order. A backup may have millions of items in memory at once. Each item
 * takes 31 bytes beside its name ({@link ObjectNames}); an object per item took 190 bytes. {@link
 * Item} objects are created on access.
 */
export class ItemList implements Iterable<Item> {
  readonly names = new ObjectNames();
  readonly #kinds: Kind[] = [];
  readonly #nameOf = new Column(Uint32Array);
  readonly #kindOf = new Column(Uint16Array);
  readonly #questionOf = new Column(Uint32Array);
  readonly #placeOf = new Column(Float64Array);
  /** Length in the spool plus one; 0 without a place. */
  readonly #lengthOf = new Column(Uint32Array);
  readonly #flags = new Column(Uint8Array);
  #rows = 0;
  /** First row of each list; most lists have no rows. */
  readonly #firstOf = new Map<number, number>();
  /** Row numbers in order, after `arrange`. */
  #order = new Uint32Array(0);
  /** First row of each name, plus one. Built on the first lookup. Further rows are rare. */
  #rowOf: Uint32Array | undefined;
  readonly #furtherRows = new Map<number, number[]>();

  get length(): number {
    return this.#order.length;
  }

  /** Memory in bytes, without the small maps. */
  get bytes(): number {
    const columns = [
      ...[this.#nameOf, this.#kindOf, this.#questionOf],
      ...[this.#placeOf, this.#lengthOf, this.#flags],
    ];
    const arrays = this.#order.byteLength + (this.#rowOf?.byteLength ?? 0);
    return columns.reduce((total, each) => total + each.bytes, arrays + this.names.bytes);
  }

  /** Adds an answer to a list, in order. Several lists may run at the same time. */
  add(
    question: number,
    resource: ServedResource,
    ref: { readonly namespace: string; readonly name: string },
    place: SpoolPlace | undefined,
  ): void {
    const kindNumber = this.#kindNumberOf(resource);
    const row = this.#rows++;
    this.#nameOf.set(row, this.names.add((this.#kinds[kindNumber] as Kind).kind, ref));
    this.#kindOf.set(row, kindNumber);
    this.#questionOf.set(row, question);
    if (!this.#firstOf.has(question)) this.#firstOf.set(question, row);
    this.#flags.set(row, 0);
    if (!place) return;
    this.#placeOf.set(row, place.at);
    this.#lengthOf.set(row, place.length + 1);
  }

  /** Drops all answers to a list. */
  forget(question: number): void {
    for (let row = this.#firstOf.get(question) ?? this.#rows; row < this.#rows; row++) {
      if (this.#questionOf.get(row) === question) this.#flag(row, VOID);
    }
  }

  /**
   * Call it after the last answer. Orders by list, with each object of a resource once, and first
   * the names of `orderOf`. Returns ordered names that do not exist.
   */
  arrange(
    questions: readonly { readonly resource: ServedResource }[],
    orderOf: (resource: ServedResource) => readonly string[],
  ): string[] {
    const missing: string[] = [];
    const answers = this.#answers(questions.length);
    const order = new Uint32Array(answers.rows.length);
    let count = 0;
    for (let at = 0; at < questions.length;) {
      const resource = (questions[at] as { resource: ServedResource }).resource;
      const from = answers.starts[at] ?? 0;
      const first = at;
      while (questions[at]?.resource === resource) at++;
      let rows = answers.rows.subarray(from, answers.starts[at]);
      if (at - first > 1) rows = this.#once(rows);
      const { named, unknown } = this.#named(resource, rows, orderOf(resource));
      missing.push(...unknown);
      for (const row of named) order[count++] = row;
      for (const row of rows) if (!this.#has(row, ORDERED)) order[count++] = row;
    }
    this.#order = order.subarray(0, count);
    return missing;
  }

  /** Removes items of a type for which `isKept` returns false. */
  keep(type: string, isKept: (item: Item) => boolean): void {
    const isOfType = this.#kinds.map((each) => each.type === type);
    this.#order = this.#order.filter(
      (row) => isOfType[this.#kindOf.get(row)] !== true || isKept(this.#item(row)),
    );
  }

  /** Namespaces with at least one item. */
  namespaces(): Set<string> {
    const found = new Set<string>();
    for (const number of this.nameNumbers()) found.add(this.names.namespaceOf(number));
    found.delete('');
    return found;
  }

  *[Symbol.iterator](): Generator<Item> {
    for (const row of this.#order) yield this.#item(row);
  }

  /** The items' numbers in `names`. */
  *nameNumbers(): Generator<number> {
    for (const row of this.#order) yield this.#nameOf.get(row);
  }

  at(index: number): Item | undefined {
    const row = this.#order[index];
    return row === undefined ? undefined : this.#item(row);
  }

  isTaken({ row }: Item): boolean {
    return this.#has(row, TAKEN);
  }

  /** Marks the item as taken. Returns false if it already was. */
  take(item: Item): boolean {
    if (this.isTaken(item)) return false;
    this.#flag(item.row, TAKEN);
    return true;
  }

  /** The listed items of an object, in each version of its type, or an empty list. */
  find(type: string, ref: { readonly namespace: string; readonly name: string }): Item[] {
    const rowOf = (this.#rowOf ??= this.#indexed());
    return this.#kinds.flatMap((kind) => {
      if (kind.type !== type) return [];
      const number = this.names.find(kind.kind, ref);
      const row = number < 0 ? 0 : (rowOf[number] ?? 0);
      if (row === 0) return [];
      const rows = [row - 1, ...(this.#furtherRows.get(number) ?? [])];
      return rows.map((each) => this.#item(each)).filter((item) => item.resource === kind.resource);
    });
  }

  /** All listed versions of the item's object. */
  versionsOf(item: Item): Item[] {
    const versions = this.#kinds.filter(({ type }) => type === item.type);
    return versions.length > 1 ? this.find(item.type, item) : [item];
  }

  #indexed(): Uint32Array {
    const rowOf = new Uint32Array(this.names.size);
    for (const row of this.#order) {
      const number = this.#nameOf.get(row);
      if (rowOf[number] === 0) rowOf[number] = row + 1;
      else this.#furtherRows.set(number, [...(this.#furtherRows.get(number) ?? []), row]);
    }
    return rowOf;
  }

  #item(row: number): Item {
    const number = this.#nameOf.get(row);
    const length = this.#lengthOf.get(row) - 1;
    return {
      ...(this.#kinds[this.#kindOf.get(row)] as Kind),
      namespace: this.names.namespaceOf(number),
      name: this.names.nameOf(number),
      place: length < 0 ? undefined : { at: this.#placeOf.get(row), length },
      isOrdered: this.#has(row, ORDERED),
      row,
    };
  }

  #kindNumberOf(resource: ServedResource): number {
    const known = this.#kinds.findLastIndex((each) => each.resource === resource);
    if (known >= 0) return known;
    const kind = `${apiVersionOf(resource)}/${resource.kind}`;
    return this.#kinds.push({ resource, type: typeOf(resource), kind }) - 1;
  }

  /** Rows by list, and the start of each list's rows. */
  #answers(questions: number): { readonly rows: Uint32Array; readonly starts: Uint32Array } {
    const starts = new Uint32Array(questions + 1);
    for (let row = 0; row < this.#rows; row++) {
      if (this.#has(row, VOID)) continue;
      const next = this.#questionOf.get(row) + 1;
      starts[next] = (starts[next] as number) + 1;
    }
    for (let at = 1; at <= questions; at++) {
      starts[at] = (starts[at] as number) + (starts[at - 1] as number);
    }
    const sorted = new Uint32Array(starts[questions] as number);
    const next = starts.slice();
    for (let row = 0; row < this.#rows; row++) {
      if (this.#has(row, VOID)) continue;
      const question = this.#questionOf.get(row);
      const at = next[question] as number;
      sorted[at] = row;
      next[question] = at + 1;
    }
    return { rows: sorted, starts };
  }

  /** Removes duplicates: several lists may return the same object. */
  #once(rows: Uint32Array): Uint32Array {
    const seen = new Uint8Array(Math.ceil(this.names.size / 8));
    return rows.filter((row) => {
      const number = this.#nameOf.get(row);
      const [at, bit] = [number >> 3, 1 << (number & 7)];
      const byte = seen[at] ?? 0;
      seen[at] = byte | bit;
      return (byte & bit) === 0;
    });
  }

  #named(
    resource: ServedResource,
    rows: Uint32Array,
    order: readonly string[],
  ): { readonly named: readonly number[]; readonly unknown: readonly string[] } {
    if (order.length === 0) return { named: [], unknown: [] };
    const { kind } = this.#kinds[this.#kindNumberOf(resource)] as Kind;
    const asked = [...new Set(order)].map((id) => ({ id, name: this.names.find(kind, refOf(id)) }));
    const rowOf = new Map(asked.map(({ name }) => [name, -1]));
    for (const row of rows) {
      if (rowOf.has(this.#nameOf.get(row))) rowOf.set(this.#nameOf.get(row), row);
    }
    const isThere = ({ name }: { readonly name: number }): boolean => (rowOf.get(name) ?? -1) >= 0;
    const named = asked.filter(isThere).map(({ name }) => rowOf.get(name) ?? 0);
    for (const row of named) this.#flag(row, ORDERED);
    return { named, unknown: asked.filter((each) => !isThere(each)).map(({ id }) => id) };
  }

  #has(row: number, flag: number): boolean {
    return (this.#flags.get(row) & flag) !== 0;
  }

  #flag(row: number, flag: number): void {
    this.#flags.set(row, this.#flags.get(row) | flag);
  }
}
