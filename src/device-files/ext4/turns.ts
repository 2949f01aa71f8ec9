import { setImmediate } from 'node:timers/promises';

/** Longest turn. Our choice: far less than a Lease's renewal or a client's wait. */
const TURN_MS = 10;

/** Yields to the other tasks of this process: timers, connections, and the signal. */
export class Turns {
  #sinceMs = performance.now();

  get isOver(): boolean {
    return performance.now() - this.#sinceMs >= TURN_MS;
  }

  /** Throws the reason of the signal. */
  async next(signal: AbortSignal): Promise<void> {
    await setImmediate();
    signal.throwIfAborted();
    this.#sinceMs = performance.now();
  }
}
