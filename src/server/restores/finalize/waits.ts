import {
  type Clock,
  MINUTE_NS,
  monotonicOf,
  type Nanoseconds,
  parseGoTime,
  Stopwatch,
} from '../../../base/index.ts';
import type { ClaimOutcome } from './claims.ts';

/** Restores that are finalized at once. Our choice: what is forgotten is only asked for again. */
const KNOWN_MAX = 10_000;
/**
 * The time alone may have been spent asleep, by a clock that was wrong, or with nobody whom one
 * could ask: what is waited for gets so long afterwards. Our choice: whoever provisions volumes is
 * back in less.
 */
const HERE_NS_MIN = MINUTE_NS;
/**
 * Longer without a look: the API server or the bucket was away. Our choice: looks are ten seconds
 * apart.
 */
const GAP_NS = 2n * MINUTE_NS;

/**
 * What a finalizer remembers of one Restore while it waits. After a restart it begins anew, but for
 * the time.
 */
export interface Wait {
  /** Claims that nothing more is done about, by `namespace/name`. */
  readonly settled: Map<string, ClaimOutcome>;
  looks: number;
}

interface Known extends Wait {
  /** Since this process began to wait, or to look again. */
  readonly watch: Stopwatch;
  /**
   * How long it had been waited before; where another process did, read from the wall clock once.
   */
  agedNs: Nanoseconds | undefined;
  /** Since the last look. */
  readonly look: Stopwatch;
}

/**
 * How long Restores have been waited for, by clocks that nobody sets, across restarts by the time
 * in their files.
 */
export class Waits {
  readonly #clock: Clock;
  readonly #known = new Map<string, Known>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  of(uid: string): Wait {
    return this.#of(uid);
  }

  /** `since`: RFC 3339, of the file; undefined while it does not say. */
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

  /** Before this process; nothing of a time that cannot be read, or lies ahead. */
  #ageNs(since: string, { watch }: Known): Nanoseconds {
    try {
      const ageNs = this.#clock.nowNs() - parseGoTime(since) - watch.elapsedNs;
      return ageNs > 0n ? ageNs : 0n;
    } catch {
      return 0n;
    }
  }
}
