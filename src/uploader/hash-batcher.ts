import type { CodecPool, Span } from '../codec/index.ts';

interface Waiting {
  readonly spans: readonly Span[];
  readonly resolve: (hash: Uint8Array) => void;
  readonly reject: (error: unknown) => void;
}

/** BLAKE2b hashes two messages in the lanes of one vector in little more time than one. */
const LANES = 2;

/** Collects chunks for one request, so that they are hashed side by side. */
export class HashBatcher {
  readonly #pool: CodecPool;
  readonly #isMemoryShort: () => boolean;
  #waiting: Waiting[] = [];

  /** @param isMemoryShort whether somebody waits for the memory that waiting chunks sit on */
  constructor(pool: CodecPool, isMemoryShort: () => boolean) {
    this.#pool = pool;
    this.#isMemoryShort = isMemoryShort;
  }

  hash(spans: readonly Span[]): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ spans, resolve, reject });
      if (this.#waiting.length >= LANES || this.#isMemoryShort()) this.flush();
    });
  }

  /** Sends what waits alone: when the stream has ended, or when its memory is needed. */
  flush(): void {
    const batch = this.#waiting;
    if (batch.length === 0) return;
    this.#waiting = [];
    this.#pool.hash(batch.map(({ spans }) => spans)).then(
      (hashes) => {
        batch.forEach(({ resolve }, i) => {
          resolve(hashes[i] as Uint8Array);
        });
      },
      (error: unknown) => {
        for (const { reject } of batch) reject(error);
      },
    );
  }
}
