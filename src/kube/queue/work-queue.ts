import { backoffMs } from '../../base/index.ts';

export interface WorkQueueOptions {
  /** First delay of a failed key. Doubles up to the maximum. */
  readonly backoffFirstMs: number;
  readonly backoffMaxMs: number;
  readonly random?: () => number;
}

/**
 * Keys to reconcile, each at most once. A key that is added while it runs comes back afterwards.
 * Failed keys wait longer each time, as in client-go's workqueue.
 */
export class WorkQueue {
  readonly #options: WorkQueueOptions;
  readonly #ready: string[] = [];
  readonly #queued = new Set<string>();
  readonly #running = new Set<string>();
  /** Added while running. */
  readonly #again = new Set<string>();
  readonly #timers = new Map<string, { timer: NodeJS.Timeout; dueMs: number }>();
  readonly #failures = new Map<string, number>();
  readonly #waiting: ((key: string | undefined) => void)[] = [];
  #isClosed = false;

  constructor(options: WorkQueueOptions) {
    this.#options = options;
  }

  get length(): number {
    return this.#ready.length;
  }

  add(key: string): void {
    if (this.#isClosed || this.#queued.has(key)) return;
    this.#cancelTimer(key);
    if (this.#running.has(key)) {
      this.#again.add(key);
      return;
    }
    const taker = this.#waiting.shift();
    if (taker) {
      this.#running.add(key);
      taker(key);
      return;
    }
    this.#queued.add(key);
    this.#ready.push(key);
  }

  /** Adds the key later. The earliest time counts. */
  addAfter(key: string, delayMs: number): void {
    if (this.#isClosed) return;
    if (delayMs <= 0) {
      this.add(key);
      return;
    }
    const dueMs = performance.now() + delayMs;
    const known = this.#timers.get(key);
    if (known && known.dueMs <= dueMs) return;
    this.#cancelTimer(key);
    const timer = setTimeout(() => {
      this.#timers.delete(key);
      this.add(key);
    }, delayMs);
    this.#timers.set(key, { timer, dueMs });
  }

  /** Adds the key after a delay that grows with every call until {@link forget}. */
  addFailed(key: string): void {
    const failures = (this.#failures.get(key) ?? 0) + 1;
    this.#failures.set(key, failures);
    const { backoffFirstMs, backoffMaxMs, random = Math.random } = this.#options;
    const limits = { firstMs: backoffFirstMs, maxMs: backoffMaxMs, jitter: 0.25, random };
    this.addAfter(key, backoffMs(failures, limits));
  }

  forget(key: string): void {
    this.#failures.delete(key);
  }

  /**
   * The next key; undefined when the queue is closed. The caller must call {@link done} afterwards.
   */
  take(): Promise<string | undefined> {
    const key = this.#ready.shift();
    if (key !== undefined) {
      this.#queued.delete(key);
      this.#running.add(key);
      return Promise.resolve(key);
    }
    if (this.#isClosed) return Promise.resolve(undefined);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  done(key: string): void {
    this.#running.delete(key);
    if (this.#again.delete(key)) this.add(key);
  }

  close(): void {
    this.#isClosed = true;
    for (const { timer } of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
    this.#ready.length = 0;
    this.#queued.clear();
    for (const taker of this.#waiting.splice(0)) taker(undefined);
  }

  #cancelTimer(key: string): void {
    const known = this.#timers.get(key);
    if (!known) return;
    clearTimeout(known.timer);
    this.#timers.delete(key);
  }
}
