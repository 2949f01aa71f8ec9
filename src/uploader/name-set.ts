import { createHash } from 'node:crypto';

const LOAD_MAX = 0.7;

/** Texts by 48 bits of their hash: 8 to 23 bytes each, whatever their length. Two may, very seldom, count as one. */
export class NameSet {
  #slots = new Float64Array(64);
  #count = 0;

  /** Returns whether it was new. */
  add(name: string): boolean {
    if (this.#count >= this.#slots.length * LOAD_MAX) this.#grow();
    const key = keyOf(name);
    const at = find(this.#slots, key);
    if (this.#slots[at] === key) return false;
    this.#slots[at] = key;
    this.#count++;
    return true;
  }

  has(name: string): boolean {
    const key = keyOf(name);
    return this.#slots[find(this.#slots, key)] === key;
  }

  #grow(): void {
    const old = this.#slots;
    this.#slots = new Float64Array(old.length * 2);
    for (const key of old) if (key !== 0) this.#slots[find(this.#slots, key)] = key;
  }
}

/** Never zero, which marks an empty slot. */
const keyOf = (name: string): number =>
  createHash('sha1').update(name).digest().readUIntBE(0, 6) + 1;

function find(slots: Float64Array, key: number): number {
  const mask = slots.length - 1;
  let at = key % slots.length;
  while (slots[at] !== 0 && slots[at] !== key) at = (at + 1) & mask;
  return at;
}
