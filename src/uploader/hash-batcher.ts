import { HASH_LANES } from '../codec/index.ts';
import type { ThreadPool, PartialSpans } from '../volume-files/index.ts';

interface Waiting {
  readonly message: PartialSpans;
  readonly resolve: (hash: Uint8Array) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Hashes chunks side by side. When the shortest has ended, the rest of the others goes on beside
 * the next chunk, so that all lanes are always in use.
 */
export class HashBatcher {
  readonly #pool: ThreadPool;
  readonly #isMemoryShort: () => boolean;
  #waiting: Waiting[] = [];
  /** Who may still bring chunks; without them nobody waits for company. */
  #streams = 0;

  /** @param isMemoryShort whether somebody waits for the memory that waiting chunks sit on */
  constructor(pool: ThreadPool, isMemoryShort: () => boolean) {
    this.#pool = pool;
    this.#isMemoryShort = isMemoryShort;
  }

  /** Call when a stream begins, and {@link endStream} when its last chunk was handed in. */
  beginStream(): void {
    this.#streams++;
  }

  endStream(): void {
    this.#streams--;
    this.flush();
  }

  hash(spans: PartialSpans['spans']): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      this.#add({ message: { spans }, resolve, reject });
    });
  }

  #add(waiting: Waiting): void {
    this.#waiting.push(waiting);
    if (this.#waiting.length >= HASH_LANES || this.#streams === 0 || this.#isMemoryShort())
      this.flush();
  }

  /** Sends what waits alone: when its memory is needed. */
  flush(): void {
    const batch = this.#waiting;
    if (batch.length === 0) return;
    this.#waiting = [];
    this.#pool.hashPartly(batch.map(({ message }) => message)).then(
      (all) => {
        batch.forEach((waiting, i) => {
          const progress = all[i];
          if (!progress) waiting.reject(new Error('a thread lost a hash'));
          else if ('digest' in progress) waiting.resolve(progress.digest);
          else this.#add({ ...waiting, message: { ...waiting.message, resume: progress.resume } });
        });
      },
      (error: unknown) => {
        for (const { reject } of batch) reject(error);
      },
    );
  }
}
