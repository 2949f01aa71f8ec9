import type { Cache } from '../../kube/index.ts';
import type { Movement } from '../movement.ts';
import { Roster } from './roster.ts';
import type { Memory, Wait } from './tracked-movements.ts';

/** After its own outage an agent receives CRs later than others, by its retry pause. */
const SETTLE_MS = 9000;
/** An object younger than this was delivered at once. Times of objects have whole seconds. */
const FRESH_MS = 1500;
const LATE_MS_MAX = 15_000;

/** How well this agent receives events of the API server. */
export type Hearing = Pick<Cache<never>, 'isAway' | 'backMs'>;

/** The first sight of an event by this agent, and its turn for work that any agent may do. */
export class AgentTurns<M extends Movement> {
  readonly #roster: Roster;
  readonly #memory: Memory<M>;
  readonly #hearing: Hearing;

  constructor(roster: Roster, memory: Memory<M>, hearing: Hearing) {
    this.#roster = roster;
    this.#memory = memory;
    this.#hearing = hearing;
  }

  /** Milliseconds since the first call. `ageMs`: the age of the event at that call. */
  sinceMs(uid: string, what: Wait, ageMs = 0): number {
    const record = this.#memory.of(uid);
    const nowMs = performance.now();
    // An overloaded server delivers a claim as late as the CR itself, so wait that much longer.
    if (record.since[what] === undefined) {
      record.lateMs[what] = ageMs > FRESH_MS ? Math.min(ageMs, LATE_MS_MAX) : 0;
    }
    return nowMs - (record.since[what] ??= nowMs);
  }

  /** Milliseconds until this agent's turn; at most 0 when it is. `afterMs`: delay for all. */
  inMs(
    uid: string,
    what: Wait,
    { ageMs = 0, afterMs = 0 }: { ageMs?: number; afterMs?: number } = {},
  ): number {
    const sinceMs = this.sinceMs(uid, what, ageMs);
    const rank = this.rank(uid);
    const turnMs = Roster.turnMs(rank);
    if (rank === 0) return afterMs + turnMs - sinceMs;
    // After an outage the view of this agent is old, and all other agents return at the same time.
    const { isAway, backMs } = this.#hearing;
    const settledInMs = SETTLE_MS - (isAway ? 0 : backMs);
    const lateMs = this.#memory.of(uid).lateMs[what] ?? 0;
    return turnMs + Math.max(afterMs + lateMs - sinceMs, settledInMs);
  }

  /** Time of the turn, past or future, for sorting the queue. */
  dueMs(uid: string, what: Wait): number {
    return performance.now() + this.inMs(uid, what);
  }

  /** Rank of this agent for the CR. Calculated again only if an agent comes or goes. */
  rank(uid: string): number {
    const record = this.#memory.of(uid);
    const { version } = this.#roster;
    if (record.rank?.version !== version) record.rank = { version, is: this.#roster.rank(uid) };
    return record.rank.is;
  }

  /** The wait is over. A new wait counts from its own start. */
  reset(uid: string, what: Wait): void {
    const record = this.#memory.get(uid);
    if (!record) return;
    delete record.since[what];
    delete record.lateMs[what];
  }
}
