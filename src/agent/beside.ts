import type { Result } from '../kube/index.ts';

export interface BesideOptions {
  /** Looks at the key again, soon. */
  readonly enqueue: (key: string) => void;
}

type Outcome = { readonly result: Result | undefined } | { readonly error: unknown };

/** Each waits for the API server and for storage most of the time. */
const RUNNING_MAX = 32;
/**
 * Of these, clean-ups that nobody waits for: storage that deletes no volumes keeps hundreds of them
 * going, for days.
 */
const UNHURRIED_MAX = 16;
const FULL_MS = 2000;

/**
 * What waits for long runs beside the reconciler, so that no worker is held by it: one for each
 * key, which nobody looks at meanwhile. What came of it is what the next look at the key returns,
 * or throws.
 */
export class Beside {
  readonly #options: BesideOptions;
  readonly #running = new Map<string, Promise<void>>();
  readonly #unhurried = new Set<string>();
  readonly #outcomes = new Map<string, Outcome>();

  constructor(options: BesideOptions) {
    this.#options = options;
  }

  isRunning(key: string): boolean {
    return this.#running.has(key);
  }

  /** What came of the last one, once. */
  take(key: string): Outcome | undefined {
    const outcome = this.#outcomes.get(key);
    this.#outcomes.delete(key);
    return outcome;
  }

  /**
   * Begins it, where there is room; else it is to be asked for again. `isUnhurried`: it leaves room
   * for others.
   */
  start(
    key: string,
    task: () => Promise<Result | undefined>,
    { isUnhurried = false }: { isUnhurried?: boolean } = {},
  ): Result | undefined {
    const isFull = isUnhurried && this.#unhurried.size >= UNHURRIED_MAX;
    if (isFull || this.#running.size >= RUNNING_MAX) return { requeueAfterMs: FULL_MS };
    if (isUnhurried) this.#unhurried.add(key);
    const running = task()
      .then(
        (result) => this.#outcomes.set(key, { result }),
        (error: unknown) => this.#outcomes.set(key, { error }),
      )
      .then(() => {
        this.#running.delete(key);
        this.#unhurried.delete(key);
        this.#options.enqueue(key);
      });
    this.#running.set(key, running);
    return undefined;
  }

  /** Resolves when nothing runs any more. */
  async drain(): Promise<void> {
    await Promise.all(this.#running.values());
  }
}
