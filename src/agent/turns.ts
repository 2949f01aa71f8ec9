import type { Roster } from './roster.ts';

/** What agents wait for, each by its own watch: since when, by the CR's UID. */
type Wait = 'new' | 'prepared' | 'away' | 'deleted' | 'final' | 'canceling';

/** When this agent first saw something about a CR, and so when it is its turn to do what any agent may do. */
export class Turns {
  readonly #roster: Roster;
  readonly #since = new Map<string, Partial<Record<Wait, number>>>();

  constructor(roster: Roster) {
    this.#roster = roster;
  }

  /** Milliseconds since it was first asked. */
  sinceMs(uid: string, what: Wait): number {
    const waits = this.#since.get(uid) ?? {};
    this.#since.set(uid, waits);
    const since = (waits[what] ??= performance.now());
    return performance.now() - since;
  }

  /** Milliseconds until it is this agent's turn; at most 0 when it is. */
  inMs(uid: string, what: Wait): number {
    return this.#roster.turnMs(uid) - this.sinceMs(uid, what);
  }

  /** It is over: should it begin again, the time counts from then. */
  reset(uid: string, what: Wait): void {
    delete this.#since.get(uid)?.[what];
  }

  forget(uid: string): void {
    this.#since.delete(uid);
  }
}
