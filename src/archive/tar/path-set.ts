import { createHash } from 'node:crypto';
import { randomBytes } from '../../base/index.ts';

const WORDS = 2;
const LOAD_MAX = 0.7;

/**
 * A set of paths at 12 to 24 bytes each, for millions of paths. A set of strings takes 150. Paths
 * are compared by 8 bytes of a hash: among a million paths, two collide in 1 of 30 million backups.
 * Each set has its own secret. Otherwise an attacker could find a collision in minutes, and no
 * backup with both paths could be made or read.
 */
export class PathSet {
  readonly #secret = randomBytes(16);
  #slots = new Uint32Array(1024 * WORDS);
  #count = 0;

  /** Returns whether it is new. */
  add(path: string): boolean {
    if (this.#count >= (this.#slots.length / WORDS) * LOAD_MAX) this.#grow();
    const hash = createHash('sha1').update(this.#secret).update(path).digest();
    // Zero is an empty slot.
    if (!put(this.#slots, hash.readUInt32LE(0) | 1, hash.readUInt32LE(4))) return false;
    this.#count++;
    return true;
  }

  has(path: string): boolean {
    const hash = createHash('sha1').update(this.#secret).update(path).digest();
    return isIn(this.#slots, hash.readUInt32LE(0) | 1, hash.readUInt32LE(4));
  }

  #grow(): void {
    const old = this.#slots;
    this.#slots = new Uint32Array(old.length * 2);
    for (let at = 0; at < old.length; at += WORDS) {
      const [first = 0, second = 0] = old.subarray(at, at + WORDS);
      if (first !== 0) put(this.#slots, first, second);
    }
  }
}

function put(slots: Uint32Array, first: number, second: number): boolean {
  const key = first >>> 0;
  const count = slots.length / WORDS;
  for (let slot = second % count; ; slot = (slot + 1) % count) {
    const at = slot * WORDS;
    if (slots[at] === 0) {
      slots[at] = key;
      slots[at + 1] = second;
      return true;
    }
    if (slots[at] === key && slots[at + 1] === second) return false;
  }
}

function isIn(slots: Uint32Array, first: number, second: number): boolean {
  const count = slots.length / WORDS;
  for (let slot = second % count; ; slot = (slot + 1) % count) {
    const at = slot * WORDS;
    if (slots[at] === 0) return false;
    if (slots[at] === first >>> 0 && slots[at + 1] === second) return true;
  }
}
