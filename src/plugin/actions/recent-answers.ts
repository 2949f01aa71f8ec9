/**
 * So old an answer may be. Our choice, as for objects that are read ahead
 * (kube/client/reads-ahead.ts).
 */
const AGE_MS_MAX = 5000;
/** Of so many questions. Our choice: each PVC of a backup asks the same few. */
const KNOWN_MAX = 32;

interface Recent {
  readonly sinceMs: number;
  readonly answer: Promise<unknown>;
}

/**
 * Answers that are the same for many PVCs of a backup, such as its classes: each is asked for once
 * in five seconds. What failed is asked for again by whoever needs it next, and by whoever waited
 * for it.
 */
export class RecentAnswers {
  readonly #known = new Map<string, Recent>();
  readonly #nowMs: () => number;

  constructor({ nowMs = () => performance.now() } = {}) {
    this.#nowMs = nowMs;
  }

  /** `key`: the backup and what is asked. */
  async of<T>(key: string, ask: () => Promise<T>): Promise<T> {
    const known = this.#known.get(key);
    if (known && this.#nowMs() - known.sinceMs <= AGE_MS_MAX) {
      try {
        return (await known.answer) as T;
      } catch {
        // Of somebody else, whose signal may have ended it.
      }
    }
    const answer = ask();
    const recent = { sinceMs: this.#nowMs(), answer };
    this.#known.delete(key);
    this.#known.set(key, recent);
    const [oldest] = this.#known.keys();
    if (this.#known.size > KNOWN_MAX && oldest !== undefined) this.#known.delete(oldest);
    answer.catch(() => {
      if (this.#known.get(key) === recent) this.#known.delete(key);
    });
    return answer;
  }
}
