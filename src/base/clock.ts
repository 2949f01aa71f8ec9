/** Time in nanoseconds since 1970-01-01 UTC, as Kopia stores it. */
export type Nanoseconds = bigint;

export const SECOND_NS = 1_000_000_000n;
export const MINUTE_NS = 60n * SECOND_NS;
export const HOUR_NS = 60n * MINUTE_NS;

/** The only source of time. Tests and simulations pass their own. */
export interface Clock {
  nowNs(): Nanoseconds;
}

/** Wall clock with the sub-millisecond part of the monotonic clock, never going backwards. */
class SystemClock implements Clock {
  #last = 0n;

  nowNs(): Nanoseconds {
    const now = BigInt(Math.floor((performance.timeOrigin + performance.now()) * 1000)) * 1000n;
    this.#last = now > this.#last ? now : this.#last + 1n;
    return this.#last;
  }
}

export const systemClock: Clock = new SystemClock();

/** A clock that moves only when told to. */
export class ManualClock implements Clock {
  #nowNs: Nanoseconds;

  constructor(startNs: Nanoseconds) {
    this.#nowNs = startNs;
  }

  nowNs(): Nanoseconds {
    return this.#nowNs;
  }

  advance(byNs: Nanoseconds): void {
    this.#nowNs += byNs;
  }
}

/** A clock that runs with another one, shifted: for tests that jump a day ahead. */
export class OffsetClock implements Clock {
  readonly #base: Clock;
  offsetNs: Nanoseconds;

  constructor(base: Clock, offsetNs: Nanoseconds = 0n) {
    this.#base = base;
    this.offsetNs = offsetNs;
  }

  nowNs(): Nanoseconds {
    return this.#base.nowNs() + this.offsetNs;
  }
}

export const unixSeconds = (ns: Nanoseconds): number => Number(ns / SECOND_NS);
/** RFC 3339 in whole seconds, as Kubernetes writes it. */
export const rfc3339Seconds = (ns: Nanoseconds): string =>
  `${toDate(ns).toISOString().slice(0, 19)}Z`;
export const toDate = (ns: Nanoseconds): Date => new Date(Number(ns / 1_000_000n));
