import { type Clock, type Nanoseconds, systemClock } from './clock.ts';

/**
 * Time that has passed since the start, for ages, intervals and deadlines. It is the longer of what
 * the wall clock and the monotonic clock say. The wall clock alone misses time when somebody sets
 * it back; the monotonic clock alone misses the time while the machine was suspended. A guard that
 * must not trust old knowledge may end early, but it never ends late.
 */
export class Stopwatch {
  readonly #clock: Clock;
  #wallNs: Nanoseconds;
  #monotonicNs: Nanoseconds;

  constructor(clock: Clock = systemClock) {
    this.#clock = clock;
    this.#wallNs = clock.nowNs();
    this.#monotonicNs = clock.monotonicNs?.() ?? 0n;
  }

  restart(): void {
    this.#wallNs = this.#clock.nowNs();
    this.#monotonicNs = this.#clock.monotonicNs?.() ?? 0n;
  }

  get elapsedNs(): Nanoseconds {
    const wall = this.#clock.nowNs() - this.#wallNs;
    const monotonic = (this.#clock.monotonicNs?.() ?? 0n) - this.#monotonicNs;
    return wall > monotonic ? wall : monotonic;
  }
}

/**
 * A clock that nobody sets, where `clock` has one: for a {@link Stopwatch} that must not run ahead
 * when the wall clock is set.
 */
export const monotonicOf = (clock: Clock): Clock =>
  clock.monotonicNs ? { nowNs: () => clock.monotonicNs?.() ?? clock.nowNs() } : clock;
