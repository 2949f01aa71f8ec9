import { setTimeout as sleep } from 'node:timers/promises';
import { asError, type Limiter } from '../base/index.ts';

/** A result that is kept until the key is forgotten. */
export type Ended<T> = { readonly result: T } | { readonly error: Error };

/** Time limit for running work when this process stops. Our choice. */
const SETTLE_MS = 5000;

/**
 * Long work outside of a controller's workers, at most one task for each key. A hanging task blocks
 * no worker. Results are kept until `forget`.
 */
export class BackgroundWork<T> {
  readonly #wake: (key: string) => void;
  readonly #running = new Map<string, Promise<void>>();
  readonly #ended = new Map<string, Ended<T>>();

  /** `wake`: reconciles a key now. */
  constructor(wake: (key: string) => void) {
    this.#wake = wake;
  }

  isRunning(key: string): boolean {
    return this.#running.has(key);
  }

  ended(key: string): Ended<T> | undefined {
    return this.#ended.get(key);
  }

  /** Drops the result. A running task still reports its result later. */
  forget(key: string): void {
    this.#ended.delete(key);
  }

  /** `places`: the limit for similar work. */
  begin(key: string, places: Pick<Limiter, 'run'>, task: () => Promise<T>): void {
    const running = places
      .run(task)
      .then(
        (result): Ended<T> => ({ result }),
        (error: unknown): Ended<T> => ({ error: asError(error) }),
      )
      .then((ended) => {
        this.#running.delete(key);
        this.#ended.set(key, ended);
        this.#wake(key);
      });
    this.#running.set(key, running);
  }

  /** Resolves when all work has ended, or soon. Hanging work writes nothing without leadership. */
  async settle(): Promise<void> {
    const ends = [...this.#running.values()];
    if (ends.length === 0) return;
    await Promise.race([Promise.all(ends), sleep(SETTLE_MS, undefined, { ref: false })]);
  }
}
