import { HASH_LANES } from '../../codec/index.ts';
import type { ThreadPool, PartialSpans } from '../../volume-files/index.ts';

interface Waiting {
  readonly message: PartialSpans;
  readonly resolve: (hash: Uint8Array) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Hashes chunks in parallel. When the shortest ends, the rest of the others continues beside the
 * next chunk. So all lanes stay in use.
 */
export class HashBatcher {
  readonly #pool: ThreadPool;
  readonly #isMemoryShort: () => boolean;
  #waiting: Waiting[] = [];
  /** Streams that may bring more chunks. Without them no chunk waits for others. */
  #streams = 0;

  /** @param isMemoryShort whether a caller waits for the memory of waiting chunks */
  constructor(pool: ThreadPool, isMemoryShort: () => boolean) {
    this.#pool = pool;
    this.#isMemoryShort = isMemoryShort;
  }

  /** Call it when a stream starts. Call {@link endStream} after its last chunk. */
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

  /** Sends waiting chunks at once, for example to free their memory. */
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
