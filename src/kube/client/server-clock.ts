import type { Clock, Nanoseconds } from '../../base/index.ts';

const MILLISECOND_NS = 1_000_000n;

/**
 * The API server's time, by the `Date` of its answers: nodes whose clocks differ then agree on how old an object is,
 * and on when something was. Exact to a second at worst; equal to the node's own clock as long as that may be right.
 */
export class ServerClock implements Clock {
  readonly #base: Clock;
  #offsetMs = 0;

  constructor(base: Clock) {
    this.#base = base;
  }

  get offsetMs(): number {
    return this.#offsetMs;
  }

  nowNs(): Nanoseconds {
    return this.#base.nowNs() + BigInt(this.#offsetMs) * MILLISECOND_NS;
  }

  /** What the node's own clock says: taken before a request is sent, for {@link note}. */
  ownMs(): number {
    return Number(this.#base.nowNs() / MILLISECOND_NS);
  }

  /** `date`: of an answer that came just now, in whole seconds; the request was sent at `sentMs`. */
  note(date: string | undefined, sentMs: number): void {
    const second = Date.parse(date ?? '');
    if (Number.isNaN(second)) return;
    // The server read its clock between the two, and cut the fraction off.
    const lowest = second - this.ownMs();
    const highest = second + 999 - sentMs;
    if (this.#offsetMs < lowest) this.#offsetMs = lowest;
    else if (this.#offsetMs > highest) this.#offsetMs = highest;
  }
}
