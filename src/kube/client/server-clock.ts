import type { Clock, Nanoseconds } from '../../base/index.ts';

const MILLISECOND_NS = 1_000_000n;

/**
 * The API server's time, by the `Date` of its answers: nodes whose clocks differ then agree on how
 * old an object is, and on when something was. Exact to a second at worst; equal to the node's own
 * clock as long as that may be right. Between two answers it goes by the monotonic clock: a node's
 * clock that is set meanwhile makes no pod older.
 */
export class ServerClock implements Clock {
  readonly #base: Clock;
  /** What the node's clock said when its monotonic clock said nothing. */
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

  /**
   * What the node's own clock says, but for steps of it: taken before a request is sent, for
   * {@link note}.
   */
  ownMs(): number {
    return Number(this.#ownNs() / MILLISECOND_NS);
  }

  #ownNs(): Nanoseconds {
    const passedNs = this.#base.monotonicNs?.();
    return passedNs === undefined ? this.#base.nowNs() : this.#zeroNs + passedNs;
  }

  /**
   * `date`: of an answer that came just now, in whole seconds; the request was sent at `sentMs`.
   */
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
