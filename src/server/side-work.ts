import { setTimeout as sleep } from 'node:timers/promises';
import { asError, type Limiter } from '../base/index.ts';

/** How a piece of work ended that nobody has looked at yet. */
export type Ended<T> = { readonly result: T } | { readonly error: Error };

/** For what is under way when this process stops. Our choice. */
const SETTLE_MS = 5000;

/**
 * Work that may take long, beside the workers of a controller and one for each key: what hangs
 * keeps no worker. How it ended waits to be looked at until it is forgotten.
 */
export class SideWork<T> {
  readonly #wake: (key: string) => void;
  readonly #running = new Map<string, Promise<void>>();
  readonly #ended = new Map<string, Ended<T>>();

  /** `wake`: looks at a key again, now. */
  constructor(wake: (key: string) => void) {
    this.#wake = wake;
  }

  isRunning(key: string): boolean {
    return this.#running.has(key);
  }

  ended(key: string): Ended<T> | undefined {
    return this.#ended.get(key);
  }

  /**
   * The next work of this key begins anew. What still runs for it is looked at when it has ended.
   */
  forget(key: string): void {
    this.#ended.delete(key);
  }

  /** `places`: of those that work is for which takes as long. */
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

  /**
   * Resolves when nothing is under way any more, or soon: what hangs then writes nothing, since
   * this process does not lead.
   */
  async settle(): Promise<void> {
    const ends = [...this.#running.values()];
    if (ends.length === 0) return;
    await Promise.race([Promise.all(ends), sleep(SETTLE_MS, undefined, { ref: false })]);
  }
}
