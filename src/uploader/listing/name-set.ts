import { hash } from 'node:crypto';
import { randomHex } from '../../base/index.ts';

const LOAD_MAX = 0.7;
/** Bytes of the key, so that it cannot be guessed. */
const KEY_BYTES = 16;

/**
 * A set of texts, by 64 bits of a keyed hash: 11 to 23 bytes each, for any length. The key is
 * random for each set, so a tenant cannot choose two names that collide. With 10 million names, 3
 * of a million sets have a collision.
 */
export class NameSet {
  readonly #key = randomHex(KEY_BYTES);
  /** Two numbers for each slot; both are 0 if it is empty. */
  #slots = new Uint32Array(128);
  #count = 0;

  get size(): number {
    return this.#count;
  }

  /** Returns whether the name is new. */
  add(name: string): boolean {
    if (this.#count >= (this.#slots.length / 2) * LOAD_MAX) this.#grow();
    const [high, low] = this.#hash(name);
    const at = find(this.#slots, high, low);
    if (this.#slots[at] !== 0) return false;
    this.#slots[at] = high;
    this.#slots[at + 1] = low;
    this.#count++;
    return true;
  }

  has(name: string): boolean {
    return this.#slots[find(this.#slots, ...this.#hash(name))] !== 0;
  }

  /** The first number is never 0. The key as a prefix is enough, because the hashes stay secret. */
  #hash(name: string): [high: number, low: number] {
    const digest = hash('sha256', this.#key + name, 'buffer');
    return [digest.readUInt32LE(0) || 1, digest.readUInt32LE(4)];
  }

  #grow(): void {
    const old = this.#slots;
    this.#slots = new Uint32Array(old.length * 2);
    for (let from = 0; from < old.length; from += 2) {
      const [high = 0, low = 0] = old.subarray(from, from + 2);
      if (high === 0) continue;
      const at = find(this.#slots, high, low);
      this.#slots[at] = high;
      this.#slots[at + 1] = low;
    }
  }
}

/** Slot of a text with this hash. */
function find(slots: Uint32Array, high: number, low: number): number {
  const mask = slots.length - 1;
  let at = (low * 2) & mask;
  while (slots[at] !== 0 && (slots[at] !== high || slots[at + 1] !== low)) at = (at + 2) & mask;
  return at;
}
