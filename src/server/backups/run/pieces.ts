/** Our choice: a hundred files of small objects. */
const CHUNK_BYTES = 256 << 10;

/**
 * Bytes that come in small pieces and are needed as a whole, copied as they come: each piece by itself is an allocation that V8 gives back late,
 * and of hundreds of thousands of objects that is most of a process's memory.
 */
export class Pieces {
  readonly #chunks: Buffer[] = [];
  #free: Buffer = Buffer.alloc(0);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  append(piece: Uint8Array): void {
    this.#length += piece.length;
    for (let rest = piece; rest.length > 0;) {
      if (this.#free.length === 0) {
        this.#free = Buffer.allocUnsafeSlow(CHUNK_BYTES);
        this.#chunks.push(this.#free);
      }
      const count = Math.min(rest.length, this.#free.length);
      this.#free.set(rest.subarray(0, count));
      this.#free = this.#free.subarray(count);
      rest = rest.subarray(count);
    }
  }

  whole(): Buffer {
    return Buffer.concat(this.#chunks, this.#length);
  }
}
