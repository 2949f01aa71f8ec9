import { setImmediate } from 'node:timers/promises';

/**
 * How long nobody else has a turn. Our choice: a Lease is renewed, and a client is answered, in
 * much more.
 */
const TURN_MS = 10;

/**
 * Lets everything else of this process have its turn now and then: timers, connections, and the
 * signal that ends the work.
 */
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
