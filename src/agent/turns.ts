import type { Cache } from '../kube/index.ts';
import type { Movement } from './movement.ts';
import { Roster } from './roster.ts';
import type { Memory, Wait } from './tracked.ts';

/**
 * After it was away from the API server, an agent hears of CRs later than others by as long as it
 * pauses between tries.
 */
const SETTLE_MS = 9000;
/**
 * What is no older than this when it is first seen was told at once: times of objects have whole
 * seconds.
 */
const FRESH_MS = 1500;
const LATE_MS_MAX = 15_000;

/** How well this agent hears the API server. */
export type Hearing = Pick<Cache<never>, 'isAway' | 'backMs'>;

/**
 * When this agent first saw something about a CR, and so when it is its turn to do what any agent
 * may do.
 */
export class Turns<M extends Movement> {
  readonly #roster: Roster;
  readonly #memory: Memory<M>;
  readonly #hearing: Hearing;

  constructor(roster: Roster, memory: Memory<M>, hearing: Hearing) {
    this.#roster = roster;
    this.#memory = memory;
    this.#hearing = hearing;
  }

  /** Milliseconds since it was first asked. `ageMs`: how old it was then. */
  sinceMs(uid: string, what: Wait, ageMs = 0): number {
    const record = this.#memory.of(uid);
    const nowMs = performance.now();
    // A server that falls behind its watches tells of a claim as late as of what is to be claimed.
    if (record.since[what] === undefined) {
      record.lateMs[what] = ageMs > FRESH_MS ? Math.min(ageMs, LATE_MS_MAX) : 0;
    }
    return nowMs - (record.since[what] ??= nowMs);
  }

  /**
   * Milliseconds until it is this agent's turn; at most 0 when it is. `afterMs`: how long anybody
   * waits.
   */
  inMs(
    uid: string,
    what: Wait,
    { ageMs = 0, afterMs = 0 }: { ageMs?: number; afterMs?: number } = {},
  ): number {
    const sinceMs = this.sinceMs(uid, what, ageMs);
    const rank = this.rank(uid);
    const turnMs = Roster.turnMs(rank);
    if (rank === 0) return afterMs + turnMs - sinceMs;
    // What this agent knows is as old as its last contact, and all others come back at the same
    // time.
    const { isAway, backMs } = this.#hearing;
    const settledInMs = SETTLE_MS - (isAway ? 0 : backMs);
    const lateMs = this.#memory.of(uid).lateMs[what] ?? 0;
    return turnMs + Math.max(afterMs + lateMs - sinceMs, settledInMs);
  }

  /** When it is, or was, its turn: to put those in order that wait. */
  dueMs(uid: string, what: Wait): number {
    return performance.now() + this.inMs(uid, what);
  }

  /**
   * How many agents come before this one, calculated once for as long as no agent comes or goes.
   */
  rank(uid: string): number {
    const record = this.#memory.of(uid);
    const { version } = this.#roster;
    if (record.rank?.version !== version) record.rank = { version, is: this.#roster.rank(uid) };
    return record.rank.is;
  }

  /** It is over: should it begin again, the time counts from then. */
  reset(uid: string, what: Wait): void {
    const record = this.#memory.get(uid);
    if (!record) return;
    delete record.since[what];
    delete record.lateMs[what];
  }
}
