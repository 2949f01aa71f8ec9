/** Time in nanoseconds since 1970-01-01 UTC, as Kopia stores it. */
export type Nanoseconds = bigint;

export const SECOND_NS = 1_000_000_000n;
export const MINUTE_NS = 60n * SECOND_NS;
export const HOUR_NS = 60n * MINUTE_NS;

/** The only source of time. Tests and simulations pass their own. */
export interface Clock {
  /**
   * The wall clock: for what is stored and compared with other machines. It may be set, also
   * backwards.
   */
  nowNs(): Nanoseconds;
  /**
   * Never goes backwards and stands still while the machine is suspended: for durations, through a
   * {@link Stopwatch}. A clock without it is one whose wall time is all there is, as in a
   * simulation.
   */
  monotonicNs?(): Nanoseconds;
}

/** What the system says; milliseconds as Node tells them. Tests set these. */
export interface SystemTime {
  /** Wall clock, milliseconds since 1970. */
  readonly wallMs: () => number;
  /** Monotonic clock, milliseconds from any start, with a fraction. */
  readonly monotonicMs: () => number;
}

const MILLISECOND_NS = 1_000_000n;
/**
 * A smaller step backwards is what rounding makes, and time stands still instead. Our choice: NTP
 * slews up to 128 ms.
 */
const HELD_BACK_NS = 100n * MILLISECOND_NS;

/**
 * The wall clock as it is set at each moment, where Node knows milliseconds. The monotonic clock
 * adds the detail below, as long as both agree: so two calls seldom get the same time. An NTP step
 * or a suspended machine parts the two, and then the wall clock counts.
 */
export class SystemClock implements Clock {
  readonly #system: SystemTime;
  /** What the wall clock said when the monotonic clock said nothing else than zero. */
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
      // The next millisecond has begun, or one of the clocks has jumped.
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
