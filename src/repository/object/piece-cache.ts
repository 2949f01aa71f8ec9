import { untilAborted } from '../../base/index.ts';

interface Held {
  readonly bytes: Promise<Uint8Array>;
  /** 0 until the bytes arrive. */
  length: number;
}

/** Recently read contents, up to a size limit. Concurrent reads of a content share one fetch. */
export class PieceCache {
  readonly #bytesMax: number;
  /** Least recently used first. */
  readonly #held = new Map<string, Held>();
  #bytes = 0;

  /** The newest content always stays, whatever its size. */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /**
   * The bytes under a key. Do not modify them. An abort does not end the fetch, because others may
   * share it. Throws errors of `load`, and the next call tries again.
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
      // A content still being fetched makes room later.
      if (length === 0) continue;
      this.#held.delete(key);
      this.#bytes -= length;
    }
  }
}
