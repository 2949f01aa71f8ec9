import { Roster } from './roster.ts';
import type { Movement } from './movement.ts';
import type { Memory, Wait } from './tracked.ts';

/** After it was away from the API server, an agent hears of CRs later than others by as long as it pauses between tries. */
const SETTLE_MS = 9000;
/** What it first hears of within so long of being back, others may have known before. */
const LATE_MS = 10_000;
/** What is no older than this when it is first seen was told at once: times of objects have whole seconds. */
const FRESH_MS = 1500;
const SETTLE_MS_MAX = 15_000;

/** When this agent first saw something about a CR, and so when it is its turn to do what any agent may do. */
export class Turns<M extends Movement> {
  readonly #roster: Roster;
  readonly #memory: Memory<M>;
  readonly #backMs: () => number;

  /** `backMs`: milliseconds since the API server was first heard, or heard again after it was away. */
  constructor(roster: Roster, memory: Memory<M>, backMs: () => number = () => Infinity) {
    this.#roster = roster;
    this.#memory = memory;
    this.#backMs = backMs;
  }

  /** Milliseconds since it was first asked. `ageMs`: how old it was then. */
  sinceMs(uid: string, what: Wait, ageMs = 0): number {
    const record = this.#memory.of(uid);
    const nowMs = performance.now();
    if (record.since[what] === undefined) {
      // A server that falls behind its watches tells of a claim as late as of what is to be claimed.
      const behindMs = ageMs > FRESH_MS ? Math.min(ageMs, SETTLE_MS_MAX) : 0;
      record.lateMs[what] = Math.max(behindMs, this.#backMs() < LATE_MS ? SETTLE_MS : 0);
    }
    return nowMs - (record.since[what] ??= nowMs);
  }

  /** Milliseconds until it is this agent's turn; at most 0 when it is. */
  inMs(uid: string, what: Wait, ageMs?: number): number {
    const sinceMs = this.sinceMs(uid, what, ageMs);
    const rank = this.rank(uid);
    const lateMs = rank > 0 ? (this.#memory.of(uid).lateMs[what] ?? 0) : 0;
    return Roster.turnMs(rank) + lateMs - sinceMs;
  }

  /** When it is, or was, its turn: to put those in order that wait. */
  dueMs(uid: string, what: Wait): number {
    return performance.now() + this.inMs(uid, what);
  }

  /** How many agents come before this one, reckoned once for as long as no agent comes or goes. */
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
