import type { Result } from '../kube/index.ts';

/** Delay of a task whose place is busy. Our choice. */
const AGAIN_MS = 1000;

/**
 * Limits the tasks at one place, such as a storage location. A place that hangs then leaves workers
 * for the other places.
 */
export class PlaceTurns {
  readonly #max: number;
  readonly #againMs: number;
  readonly #busy = new Map<string, number>();

  /** `max`: less than the workers of the controller. */
  constructor(max: number, againMs = AGAIN_MS) {
    this.#max = max;
    this.#againMs = againMs;
  }

  /** Returns a delay, without the task, if the place is busy. Throws the error of the task. */
  async run(place: string, task: () => Promise<Result | undefined>): Promise<Result | undefined> {
    const busy = this.#busy.get(place) ?? 0;
    if (busy >= this.#max) return { requeueAfterMs: this.#againMs };
    this.#busy.set(place, busy + 1);
    try {
      return await task();
    } finally {
      const left = (this.#busy.get(place) ?? 1) - 1;
      if (left > 0) this.#busy.set(place, left);
      else this.#busy.delete(place);
    }
  }
}
