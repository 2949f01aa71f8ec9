import { type Clock, type Nanoseconds, systemClock } from './clock.ts';

/**
 * Time since the start, for ages, intervals and deadlines. The longer of wall clock and monotonic
 * clock: setting back the wall clock loses time, and a suspended machine stops the monotonic clock.
 * A deadline may therefore end early, but never late.
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
 * The monotonic clock of `clock` if it has one. Use it for a {@link Stopwatch} that must not jump
 * when the wall clock is set.
 */
export const monotonicOf = (clock: Clock): Clock =>
  clock.monotonicNs ? { nowNs: () => clock.monotonicNs?.() ?? clock.nowNs() } : clock;
