import PQueue from 'p-queue';

/** Runs at most a fixed number of tasks at once; the rest wait in order. */
export interface Limiter {
  run<T>(task: () => Promise<T>): Promise<T>;
  readonly pending: number;
  /** Resolves when no task runs or waits. */
  onIdle(): Promise<void>;
}

export function createLimiter(concurrency: number): Limiter {
  const queue = new PQueue({ concurrency, autoStart: true });
  return {
    run: (task) => queue.add(task),
    get pending() {
      return queue.size + queue.pending;
    },
    onIdle: () => queue.onIdle(),
  };
}

/**
 * Maps with at most `concurrency` tasks at once. After a failure, starts no more tasks, waits for
 * the running tasks, and throws the first failure.
 */
export async function mapLimited<T, R>(
  items: Iterable<T>,
  concurrency: number,
  task: (item: T, index: number) => Promise<R>,
): Promise<R[]> {
  const results: R[] = [];
  const iterator = items[Symbol.iterator]();
  let next = 0;
  const failures: unknown[] = [];
  const lane = async (): Promise<void> => {
    while (failures.length === 0) {
      const step = iterator.next();
      if (step.done === true) return;
      const index = next++;
      try {
        results[index] = await task(step.value, index);
      } catch (error) {
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: concurrency }, lane));
  if (failures.length > 0) throw failures[0];
  return results;
}

/** A counting semaphore in units (bytes, slots). FIFO, so a large request does not starve. */
export class Semaphore {
  #free: number;
  readonly #waiting: { units: number; resume: () => void }[] = [];

  constructor(units: number) {
    this.#free = units;
  }

  tryAcquire(units = 1): boolean {
    if (this.#waiting.length > 0 || this.#free < units) return false;
    this.#free -= units;
    return true;
  }

  async acquire(units = 1): Promise<void> {
    if (this.#waiting.length === 0 && this.#free >= units) {
      this.#free -= units;
      return;
    }
    await new Promise<void>((resume) => this.#waiting.push({ units, resume }));
  }

  release(units = 1): void {
    this.#free += units;
    for (let head = this.#waiting[0]; head && head.units <= this.#free; head = this.#waiting[0]) {
      this.#waiting.shift();
      this.#free -= head.units;
      head.resume();
    }
  }
}
