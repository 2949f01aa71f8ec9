import type { Movement } from './movement.ts';
import type { Roster } from './roster.ts';
import type { Memory, Wait } from './tracked.ts';

/** When this agent first saw something about a CR, and so when it is its turn to do what any agent may do. */
export class Turns<M extends Movement> {
  readonly #roster: Roster;
  readonly #memory: Memory<M>;

  constructor(roster: Roster, memory: Memory<M>) {
    this.#roster = roster;
    this.#memory = memory;
  }

  /** Milliseconds since it was first asked. */
  sinceMs(uid: string, what: Wait): number {
    const { since } = this.#memory.of(uid);
    const first = (since[what] ??= performance.now());
    return performance.now() - first;
  }

  /** Milliseconds until it is this agent's turn; at most 0 when it is. */
  inMs(uid: string, what: Wait): number {
    return this.#roster.turnMs(uid) - this.sinceMs(uid, what);
  }

  /** It is over: should it begin again, the time counts from then. */
  reset(uid: string, what: Wait): void {
    delete this.#memory.get(uid)?.since[what];
  }
}
