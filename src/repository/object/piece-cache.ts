import { untilAborted } from '../../base/index.ts';

interface Held {
  readonly bytes: Promise<Uint8Array>;
  /** 0 until they are there. */
  length: number;
}

/** Contents that were read last, up to a bound; what several want at once is fetched once. */
export class PieceCache {
  readonly #bytesMax: number;
  /** The one used longest ago first. */
  readonly #held = new Map<string, Held>();
  #bytes = 0;

  /** The newest one is held however long it is. */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /**
   * The bytes under a key, which nobody may write into. What is fetched is there for others, too:
   * whoever goes ends no fetch. Throws what `load` throws, and then the next one tries again.
   */
  async get(
    key: string,
    load: () => Promise<Uint8Array>,
    signal: AbortSignal | undefined,
  ): Promise<Uint8Array> {
    signal?.throwIfAborted();
    const held = this.#held.get(key) ?? this.#begin(key, load);
    this.#held.delete(key);
    this.#held.set(key, held);
    if (!signal) return await held.bytes;
    await untilAborted(signal, held.bytes);
    signal.throwIfAborted();
    return await held.bytes;
  }

  #begin(key: string, load: () => Promise<Uint8Array>): Held {
    const held: Held = { bytes: load(), length: 0 };
    held.bytes.then(
      ({ length }) => {
        held.length = length;
        this.#bytes += length;
        this.#makeRoom();
      },
      () => this.#held.delete(key),
    );
    return held;
  }

  #makeRoom(): void {
    for (const [key, { length }] of this.#held) {
      if (this.#bytes <= this.#bytesMax || this.#held.size === 1) return;
      // One that is still fetched will make room itself.
      if (length === 0) continue;
      this.#held.delete(key);
      this.#bytes -= length;
    }
  }
}
