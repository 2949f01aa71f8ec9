import type { Result } from '../../kube/index.ts';

export interface BackgroundTasksOptions {
  /** Requests another reconcile of the key soon. */
  readonly enqueue: (key: string) => void;
}

type Outcome = { readonly result: Result | undefined } | { readonly error: unknown };

/** Tasks running at once. They mostly wait for the API server and for storage. */
const RUNNING_MAX = 32;
/** Limit for clean-ups. Storage that fails to delete volumes keeps hundreds going for days. */
const UNHURRIED_MAX = 16;
const FULL_MS = 2000;

/**
 * Runs long tasks beside the reconciler, so that they block no worker. At most one task per key,
 * and the key is not reconciled meanwhile. The next reconcile returns or throws the task's outcome.
 */
export class BackgroundTasks {
  readonly #options: BackgroundTasksOptions;
  readonly #running = new Map<string, Promise<void>>();
  readonly #unhurried = new Set<string>();
  readonly #outcomes = new Map<string, Outcome>();

  constructor(options: BackgroundTasksOptions) {
    this.#options = options;
  }

  isRunning(key: string): boolean {
    return this.#running.has(key);
  }

  /** Outcome of the last task, once. */
  take(key: string): Outcome | undefined {
    const outcome = this.#outcomes.get(key);
    this.#outcomes.delete(key);
    return outcome;
  }

  /** Starts the task, or returns a time to retry. `isUnhurried`: has a smaller limit. */
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

  async drain(): Promise<void> {
    await Promise.all(this.#running.values());
  }
}
