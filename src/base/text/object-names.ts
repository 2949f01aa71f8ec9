import { assert } from '../errors.ts';
import { Column } from '../number-column.ts';
import { compareUtf8 } from '../go/go-json.ts';
import { randomBytes } from '../random.ts';

interface Ref {
  /** `''` for cluster-scoped objects. */
  readonly namespace: string;
  readonly name: string;
}

const TEXT_PIECE_BYTES = 64 << 10;
const TEXT_BYTES_MAX = 2 ** 32;
/** Longer names and non-ASCII names are stored as strings. Kubernetes has almost none. */
const PLAIN_LENGTH_MAX = 254;
const UNCOMMON = 255;
const LOAD_MAX = 0.7;

/**
 * Numbers objects from 0 by kind (`apiVersion/Kind`), namespace and name. A backup may have
 * millions, so they are not objects or strings. Each takes the bytes of its name plus 13, and 6 to
 * 12 bytes in the hash table. Maps of strings took 100 to 150 bytes. The garbage collector has no
 * work with them either.
 */
export class ObjectNames {
  readonly #kinds = new Texts();
  readonly #namespaces = new Texts();
  readonly #kindOf = new Column(Uint32Array);
  readonly #namespaceOf = new Column(Uint32Array);
  readonly #startOf = new Column(Uint32Array);
  readonly #lengthOf = new Column(Uint8Array);
  readonly #text: Buffer[] = [];
  #textBytes = 0;
  readonly #uncommon = new Map<number, string>();
  /** Numbers plus one by hash. 0 marks a free slot. */
  #slots = new Uint32Array(1024);
  #size = 0;
  /** Random, so that users who name objects cannot provoke hash collisions. */
  readonly #seed = Buffer.from(randomBytes(4)).readUInt32LE();

  get size(): number {
    return this.#size;
  }

  /** Memory in use, without kinds, namespaces and uncommon names. */
  get bytes(): number {
    const columns = [this.#kindOf, this.#namespaceOf, this.#startOf, this.#lengthOf];
    const texts = this.#text.length * TEXT_PIECE_BYTES;
    return columns.reduce((total, each) => total + each.bytes, texts + this.#slots.byteLength);
  }

  /** The number of an object, or -1. */
  find(kind: string, { namespace, name }: Ref): number {
    const [kindNumber, namespaceNumber] = [
      this.#kinds.find(kind),
      this.#namespaces.find(namespace),
    ];
    if (kindNumber < 0 || namespaceNumber < 0) return -1;
    return (this.#slots[this.#slotOf(kindNumber, namespaceNumber, name)] as number) - 1;
  }

  /** The number of an object. A new object gets a new number. */
  add(kind: string, { namespace, name }: Ref): number {
    if (this.#size >= this.#slots.length * LOAD_MAX) this.#grow();
    const [kindNumber, namespaceNumber] = [this.#kinds.add(kind), this.#namespaces.add(namespace)];
    const slot = this.#slotOf(kindNumber, namespaceNumber, name);
    const known = (this.#slots[slot] as number) - 1;
    if (known >= 0) return known;
    const added = this.#size++;
    this.#slots[slot] = added + 1;
    this.#kindOf.set(added, kindNumber);
    this.#namespaceOf.set(added, namespaceNumber);
    this.#keep(added, name);
    return added;
  }

  kindOf(number: number): string {
    return this.#kinds.at(this.#kindOf.get(number));
  }

  namespaceOf(number: number): string {
    return this.#namespaces.at(this.#namespaceOf.get(number));
  }

  nameOf(number: number): string {
    const length = this.#lengthOf.get(number);
    if (length === UNCOMMON) return this.#uncommon.get(number) ?? '';
    const start = this.#startOf.get(number);
    const at = start % TEXT_PIECE_BYTES;
    const piece = this.#text[Math.floor(start / TEXT_PIECE_BYTES)];
    return piece?.toString('latin1', at, at + length) ?? '';
  }

  /**
   * Yields each kind with its objects as `namespace/name`, or `name` if cluster-scoped. Kinds and
   * objects are sorted by their bytes. `suffixOf` is appended to a name. Only the names of one
   * namespace are strings at a time. Besides, it takes 8 bytes for each object while it is read.
   */
  *sorted(
    isIn: (number: number) => boolean,
    suffixOf: (number: number) => string = () => '',
  ): Generator<readonly [string, Iterable<string>]> {
    const buckets = bucketsOf(this.#size, isIn, (number) => this.#kindOf.get(number));
    const kinds = [...buckets.keys()].map((key) => ({ key, text: this.#kinds.at(key) }));
    for (const { key, text } of kinds.sort((a, b) => compareUtf8(a.text, b.text))) {
      const numbers = buckets.get(key);
      if (numbers) yield [text, this.#sortedIds(numbers, suffixOf)];
    }
  }

  *#sortedIds(numbers: Uint32Array, suffixOf: (number: number) => string): Generator<string> {
    const buckets = bucketsOf(
      numbers.length,
      () => true,
      (at) => this.#namespaceOf.get(numbers[at] as number),
    );
    const spaces = [...buckets].map(([key, places]) => ({
      prefix: this.#namespaces.at(key) === '' ? '' : `${this.#namespaces.at(key)}/`,
      places,
    }));
    spaces.sort((a, b) => compareUtf8(a.prefix, b.prefix));
    for (const { prefix, places } of spaces) {
      const names = Array.from(places, (at) => {
        const number = numbers[at] as number;
        return this.nameOf(number) + suffixOf(number);
      });
      for (const name of names.sort(compareUtf8)) yield `${prefix}${name}`;
    }
  }

  #keep(number: number, name: string): void {
    if (!isPlain(name)) {
      this.#lengthOf.set(number, UNCOMMON);
      this.#uncommon.set(number, name);
      return;
    }
    const free = this.#text.length * TEXT_PIECE_BYTES - this.#textBytes;
    if (name.length > free) {
      this.#textBytes = this.#text.length * TEXT_PIECE_BYTES;
      this.#text.push(Buffer.allocUnsafeSlow(TEXT_PIECE_BYTES));
    }
    assert(this.#textBytes + name.length < TEXT_BYTES_MAX, 'fewer names than have 4 GiB');
    this.#text.at(-1)?.write(name, this.#textBytes % TEXT_PIECE_BYTES, 'latin1');
    this.#startOf.set(number, this.#textBytes);
    this.#lengthOf.set(number, name.length);
    this.#textBytes += name.length;
  }

  #grow(): void {
    this.#slots = new Uint32Array(this.#slots.length * 2);
    for (let number = 0; number < this.#size; number++) {
      const [kind, namespace] = [this.#kindOf.get(number), this.#namespaceOf.get(number)];
      const mask = this.#slots.length - 1;
      let at = this.#hashOf(kind, namespace, this.nameOf(number)) & mask;
      while (this.#slots[at] !== 0) at = (at + 1) & mask;
      this.#slots[at] = number + 1;
    }
  }

  /** The slot of an object, or the free slot for it. */
  #slotOf(kind: number, namespace: number, name: string): number {
    const mask = this.#slots.length - 1;
    for (let at = this.#hashOf(kind, namespace, name) & mask; ; at = (at + 1) & mask) {
      const number = (this.#slots[at] as number) - 1;
      if (number < 0) return at;
      if (
        this.#kindOf.get(number) === kind &&
        this.#namespaceOf.get(number) === namespace &&
        this.nameOf(number) === name
      ) {
        return at;
      }
    }
  }

  #hashOf(kind: number, namespace: number, name: string): number {
    let hash = this.#seed ^ Math.imul(kind + 1, 0x9e3779b1) ^ Math.imul(namespace + 1, 0x85ebca6b);
    for (let at = 0; at < name.length; at++) {
      hash = Math.imul(hash ^ name.charCodeAt(at), 0x5bd1e995);
      hash ^= hash >>> 15;
    }
    return (hash ^ (hash >>> 13)) >>> 0;
  }
}

/** Groups the included numbers by key, in ascending order. */
function bucketsOf(
  size: number,
  isIn: (number: number) => boolean,
  keyOf: (number: number) => number,
): Map<number, Uint32Array> {
  const counts = new Map<number, number>();
  for (let at = 0; at < size; at++) {
    if (isIn(at)) counts.set(keyOf(at), (counts.get(keyOf(at)) ?? 0) + 1);
  }
  const buckets = new Map([...counts].map(([key, count]) => [key, new Uint32Array(count)]));
  const filled = new Map<number, number>();
  for (let at = 0; at < size; at++) {
    if (!isIn(at)) continue;
    const key = keyOf(at);
    const next = filled.get(key) ?? 0;
    (buckets.get(key) as Uint32Array)[next] = at;
    filled.set(key, next + 1);
  }
  return buckets;
}

function isPlain(name: string): boolean {
  if (name.length > PLAIN_LENGTH_MAX) return false;
  for (let at = 0; at < name.length; at++) if (name.charCodeAt(at) > 0x7f) return false;
  return true;
}

/** A few strings by number. */
class Texts {
  readonly #numbers = new Map<string, number>();
  readonly #texts: string[] = [];

  find(text: string): number {
    return this.#numbers.get(text) ?? -1;
  }

  add(text: string): number {
    const known = this.#numbers.get(text);
    if (known !== undefined) return known;
    this.#numbers.set(text, this.#texts.length);
    return this.#texts.push(text) - 1;
  }

  at(number: number): string {
    return this.#texts[number] ?? '';
  }
}
