import {
  type ContentId,
  hashOf,
  type ObjectId,
  parseObjectId,
  prefixOf,
} from '../repository/index.ts';

const WORDS = 4;
const LOAD_MAX = 0.7;

/**
 * A set of content IDs at about 25 bytes each. (Strings take 100 bytes, and garbage collection
 * holds all IDs in use.) Compares 16 bytes of the hash, with the prefix mixed in.
 */
export class ContentIdSet {
  #slots = new Uint32Array(1024 * WORDS);
  #count = 0;

  get size(): number {
    return this.#count;
  }

  /** Returns whether the ID was new. */
  add(id: ContentId): boolean {
    if (this.#count >= (this.#slots.length / WORDS) * LOAD_MAX) this.#grow();
    const key = keyOf(id);
    const at = find(this.#slots, key);
    if (this.#slots[at] !== 0) return false;
    this.#slots.set(key, at);
    this.#count++;
    return true;
  }

  has(id: ContentId): boolean {
    return this.#slots[find(this.#slots, keyOf(id))] !== 0;
  }

  #grow(): void {
    const old = this.#slots;
    this.#slots = new Uint32Array(old.length * 2);
    for (let at = 0; at < old.length; at += WORDS) {
      if (old[at] === 0) continue;
      const key = old.subarray(at, at + WORDS);
      this.#slots.set(key, find(this.#slots, key));
    }
  }
}

/** A set of object IDs. An index and its first content are different objects. */
export class ObjectIdSet {
  readonly #levels: ContentIdSet[] = [];

  /** Returns whether the ID was new. */
  add(id: ObjectId): boolean {
    const { indirections, contentId } = parseObjectId(id);
    return (this.#levels[indirections] ??= new ContentIdSet()).add(contentId);
  }

  has(id: ObjectId): boolean {
    const { indirections, contentId } = parseObjectId(id);
    return this.#levels[indirections]?.has(contentId) ?? false;
  }
}

/** The first word is never zero, because zero marks an empty slot. */
function keyOf(id: ContentId): Uint32Array {
  const hash = hashOf(id);
  const key = new Uint32Array(WORDS);
  for (let i = 0; i < WORDS; i++) key[i] = hash.readUInt32LE(i * 4);
  key[1] = (key[1] as number) ^ ((prefixOf(id).codePointAt(0) ?? 0) * 0x9e3779b1);
  if (key[0] === 0) key[0] = 1;
  return key;
}

function find(slots: Uint32Array, key: Uint32Array): number {
  const mask = slots.length / WORDS - 1;
  for (let slot = (key[2] as number) & mask; ; slot = (slot + 1) & mask) {
    const at = slot * WORDS;
    if (slots[at] === 0) return at;
    if (
      slots[at] === key[0] &&
      slots[at + 1] === key[1] &&
      slots[at + 2] === key[2] &&
      slots[at + 3] === key[3]
    ) {
      return at;
    }
  }
}
