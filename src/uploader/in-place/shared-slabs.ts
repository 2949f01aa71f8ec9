import { assert } from '../../base/index.ts';
import type { Span } from '../../codec/index.ts';
import { SLAB_BYTES } from '../../repository/index.ts';

interface Slab {
  readonly address: number;
  usedBytes: number;
  users: number;
}

/** Room for one range. */
export interface SlabRoom {
  /** Their total length is the requested length, in order. */
  readonly spans: readonly Span[];
  /** The slab of each span. */
  readonly slabs: readonly Slab[];
}

/**
 * Slabs that ranges of any length share. Ranges lie one behind the other. A slab is free again when
 * all its ranges were given back.
 */
export class SharedSlabs {
  /** Bytes of all slabs. */
  readonly totalBytes: number;
  readonly #free: number[];
  /** The slab being filled. */
  #current: Slab | undefined;

  constructor(addresses: readonly number[]) {
    this.#free = [...addresses];
    this.totalBytes = addresses.length * SLAB_BYTES;
  }

  /** Undefined if there is not enough. The caller must give it back once. */
  take(lengthBytes: number): SlabRoom | undefined {
    const inCurrent = this.#current ? SLAB_BYTES - this.#current.usedBytes : 0;
    if (lengthBytes > inCurrent + this.#free.length * SLAB_BYTES) return undefined;
    const [spans, slabs]: [Span[], Slab[]] = [[], []];
    for (let left = lengthBytes; left > 0;) {
      const slab = this.#slabWithRoom();
      const length = Math.min(left, SLAB_BYTES - slab.usedBytes);
      spans.push({ address: slab.address + slab.usedBytes, length });
      slabs.push(slab);
      slab.usedBytes += length;
      slab.users++;
      left -= length;
    }
    return { spans, slabs };
  }

  give({ slabs }: SlabRoom): void {
    for (const slab of slabs) {
      slab.users--;
      if (slab.users > 0) continue;
      if (this.#current === slab) this.#current = undefined;
      this.#free.push(slab.address);
    }
  }

  /** The address of a whole slab; undefined if none is free. */
  takeWhole(): number | undefined {
    return this.#free.pop();
  }

  giveWhole(address: number): void {
    this.#free.push(address);
  }

  #slabWithRoom(): Slab {
    if (this.#current && this.#current.usedBytes < SLAB_BYTES) return this.#current;
    const address = this.#free.pop();
    assert(address !== undefined, 'a free slab');
    this.#current = { address, usedBytes: 0, users: 0 };
    return this.#current;
  }
}
