import type { Clock, Nanoseconds } from '../../base/index.ts';

const MILLISECOND_NS = 1_000_000n;

/**
 * The API server's time, from the `Date` of its answers. All nodes then agree on the age of an
 * object. Exact to one second; equal to the node's own clock if that is within this range. Between
 * answers the monotonic clock counts, so setting a node's clock does not change ages.
 */
export class ServerClock implements Clock {
  readonly #base: Clock;
  /** The node's time at the zero of its monotonic clock. */
  readonly #zeroNs: Nanoseconds;
  #offsetMs = 0;

  constructor(base: Clock) {
    this.#base = base;
    this.#zeroNs = base.nowNs() - (base.monotonicNs?.() ?? 0n);
  }

  get offsetMs(): number {
    return this.#offsetMs;
  }

  nowNs(): Nanoseconds {
    return this.#ownNs() + BigInt(this.#offsetMs) * MILLISECOND_NS;
  }

  /** The node's own time, without steps. Read before a request is sent, for {@link note}. */
  ownMs(): number {
    return Number(this.#ownNs() / MILLISECOND_NS);
  }

  #ownNs(): Nanoseconds {
    const passedNs = this.#base.monotonicNs?.();
    return passedNs === undefined ? this.#base.nowNs() : this.#zeroNs + passedNs;
  }

  /** `date`: whole seconds, from an answer that just arrived to a request sent at `sentMs`. */
  note(date: string | undefined, sentMs: number): void {
    const second = Date.parse(date ?? '');
    if (Number.isNaN(second)) return;
    // The server read its clock in between, and cut off the fraction.
    const lowest = second - this.ownMs();
    const highest = second + 999 - sentMs;
    if (this.#offsetMs < lowest) this.#offsetMs = lowest;
    else if (this.#offsetMs > highest) this.#offsetMs = highest;
  }
}
