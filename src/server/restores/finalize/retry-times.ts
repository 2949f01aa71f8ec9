import {
  type Clock,
  MINUTE_NS,
  monotonicOf,
  type Nanoseconds,
  parseGoTime,
  Stopwatch,
} from '../../../base/index.ts';
import type { ClaimOutcome } from './provisioned-claims.ts';

/** Our choice: a forgotten Restore is only read again. */
const KNOWN_MAX = 10_000;
/**
 * Shortest wait in this process. The noted time alone may be wrong after a sleep, a clock error, or
 * an outage. Our choice: a provisioner restarts in less.
 */
const HERE_NS_MIN = MINUTE_NS;
/** A longer gap between two looks means an outage. Our choice: looks are ten seconds apart. */
const GAP_NS = 2n * MINUTE_NS;

/** The memory of a finalizer for a waiting Restore. A restart loses all but the time. */
export interface Wait {
  /** Results of finished claims. Keys are `namespace/name`. */
  readonly settled: Map<string, ClaimOutcome>;
  looks: number;
}

interface Known extends Wait {
  /** Runs since the first look, or since the last gap. */
  readonly watch: Stopwatch;
  /** Time waited before `watch` began. For an earlier process, read once from the wall clock. */
  agedNs: Nanoseconds | undefined;
  /** Runs since the last look. */
  readonly look: Stopwatch;
}

/** How long Restores have waited, by monotonic clocks. Times in their files cover restarts. */
export class RetryTimes {
  readonly #clock: Clock;
  readonly #known = new Map<string, Known>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  of(uid: string): Wait {
    return this.#of(uid);
  }

  /** `since` is the RFC 3339 time in the file; undefined if it has none. */
  isOver(uid: string, since: string | undefined, boundNs: Nanoseconds): boolean {
    const known = this.#of(uid);
    known.agedNs ??= since === undefined ? undefined : this.#ageNs(since, known);
    if (known.look.elapsedNs >= GAP_NS) {
      known.agedNs = (known.agedNs ?? 0n) + known.watch.elapsedNs;
      known.watch.restart();
    }
    known.look.restart();
    const hereNs = known.watch.elapsedNs;
    const leastNs = boundNs < HERE_NS_MIN ? boundNs : HERE_NS_MIN;
    return hereNs >= leastNs && hereNs + (known.agedNs ?? 0n) >= boundNs;
  }

  forget(uid: string): void {
    this.#known.delete(uid);
  }

  #of(uid: string): Known {
    const known = this.#known.get(uid);
    if (known) return known;
    const clock = monotonicOf(this.#clock);
    const [watch, look] = [new Stopwatch(clock), new Stopwatch(clock)];
    const made: Known = { settled: new Map(), looks: 0, watch, look, agedNs: undefined };
    this.#known.set(uid, made);
    const [oldest] = this.#known.keys();
    if (this.#known.size > KNOWN_MAX && oldest !== undefined) this.#known.delete(oldest);
    return made;
  }

  /** Age before this process; 0 for invalid or future times. */
  #ageNs(since: string, { watch }: Known): Nanoseconds {
    try {
      const ageNs = this.#clock.nowNs() - parseGoTime(since) - watch.elapsedNs;
      return ageNs > 0n ? ageNs : 0n;
    } catch {
      return 0n;
    }
  }
}
