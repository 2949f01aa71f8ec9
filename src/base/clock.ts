/** Nanoseconds since 1970-01-01 UTC, as in Kopia. */
export type Nanoseconds = bigint;

export const SECOND_NS = 1_000_000_000n;
export const MINUTE_NS = 60n * SECOND_NS;
export const HOUR_NS = 60n * MINUTE_NS;

/** The only source of time. Tests and simulations pass their own. */
export interface Clock {
  /** The wall clock, for stored times and for comparison with other machines. May be set back. */
  nowNs(): Nanoseconds;
  /**
   * Never goes back, and stops while the machine is suspended. Use it for durations, through a
   * {@link Stopwatch}. Clocks without it have only wall time, as in a simulation.
   */
  monotonicNs?(): Nanoseconds;
}

/** The system's clocks in milliseconds, as in Node. Tests replace them. */
export interface SystemTime {
  /** Wall clock in milliseconds since 1970. */
  readonly wallMs: () => number;
  /** Monotonic clock in milliseconds from an arbitrary start, with a fraction. */
  readonly monotonicMs: () => number;
}

const MILLISECOND_NS = 1_000_000n;
/** Smaller steps back are rounding: time then moves by 1 ns. Our choice: NTP slews up to 128 ms. */
const HELD_BACK_NS = 100n * MILLISECOND_NS;

/**
 * The current wall clock, which Node knows in milliseconds. The monotonic clock adds the digits
 * below while both agree, so two calls rarely get the same time. After an NTP step or a suspension,
 * the wall clock wins.
 */
export class SystemClock implements Clock {
  readonly #system: SystemTime;
  /** Difference between the wall clock and the monotonic clock. */
  #offsetNs = 0n;
  #last = 0n;

  constructor(
    system: SystemTime = { wallMs: () => Date.now(), monotonicMs: () => performance.now() },
  ) {
    this.#system = system;
  }

  nowNs(): Nanoseconds {
    const wall = BigInt(this.#system.wallMs()) * MILLISECOND_NS;
    const monotonic = this.monotonicNs();
    let now = monotonic + this.#offsetNs;
    const detail = now - wall;
    if (detail < 0n || detail >= MILLISECOND_NS) {
      // The next millisecond has begun, or a clock has jumped.
      now = detail < 0n ? wall : wall + MILLISECOND_NS - 1n;
      this.#offsetNs = now - monotonic;
    }
    if (now <= this.#last && this.#last - now < HELD_BACK_NS) now = this.#last + 1n;
    this.#last = now;
    return now;
  }

  monotonicNs(): Nanoseconds {
    return BigInt(Math.floor(this.#system.monotonicMs() * 1000)) * 1000n;
  }
}

export const systemClock: Clock = new SystemClock();

/** A clock that only moves by `advance`. */
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

/** A shifted clock, for tests that jump a day ahead. */
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
/** RFC 3339 in whole seconds, as in Kubernetes. */
export const rfc3339Seconds = (ns: Nanoseconds): string =>
  `${toDate(ns).toISOString().slice(0, 19)}Z`;
export const toDate = (ns: Nanoseconds): Date => new Date(Number(ns / 1_000_000n));
