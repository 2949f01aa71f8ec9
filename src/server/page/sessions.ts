import { createHash } from 'node:crypto';
import { type Clock, HOUR_NS, randomBytes, type Secret, Stopwatch } from '../../base/index.ts';

/** Our choice: more browsers than a team has. A new session replaces the oldest. */
const SESSIONS_MAX = 1000;
const LIVES_NS = HOUR_NS;
export const SESSION_SECONDS = Number(LIVES_NS / 1_000_000_000n);

interface Session {
  readonly token: Secret;
  readonly age: Stopwatch;
}

const hashOf = (id: string): string => createHash('sha256').update(id).digest('base64');

/**
 * Sessions of browsers that logged in with a token. A session ends after an hour, and with this
 * process. The token is checked again for each request, so a session never allows more than its
 * token.
 */
export class Sessions {
  readonly #clock: Clock;
  /** Keys are hashes of ids, oldest first. Hashes make timing attacks useless. */
  readonly #sessions = new Map<string, Session>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Returns its id, for a cookie. */
  begin(token: Secret): string {
    const id = Buffer.from(randomBytes(32)).toString('base64url');
    this.#sessions.set(hashOf(id), { token, age: new Stopwatch(this.#clock) });
    this.#forget();
    return id;
  }

  tokenOf(id: string): Secret | undefined {
    this.#forget();
    return this.#sessions.get(hashOf(id))?.token;
  }

  end(id: string): void {
    this.#sessions.delete(hashOf(id));
  }

  get size(): number {
    return this.#sessions.size;
  }

  #forget(): void {
    for (const [key, { age }] of this.#sessions) {
      if (this.#sessions.size <= SESSIONS_MAX && age.elapsedNs < LIVES_NS) break;
      this.#sessions.delete(key);
    }
  }
}
