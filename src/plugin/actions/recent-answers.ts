/** Maximum age of an answer. Our choice, as for prefetched objects (kube/client/reads-ahead.ts). */
const AGE_MS_MAX = 5000;
/** Maximum number of answers. Our choice: each PVC of a backup asks the same few questions. */
const KNOWN_MAX = 32;

interface Recent {
  readonly sinceMs: number;
  readonly answer: Promise<unknown>;
}

/**
 * Answers that are the same for many PVCs of a backup, such as its classes. Each question is asked
 * once in five seconds. A failed answer is not kept: the next caller and each waiting caller ask
 * again.
 */
export class RecentAnswers {
  readonly #known = new Map<string, Recent>();
  readonly #nowMs: () => number;

  constructor({ nowMs = () => performance.now() } = {}) {
    this.#nowMs = nowMs;
  }

  /** `key`: the backup and the question. */
  async of<T>(key: string, ask: () => Promise<T>): Promise<T> {
    const known = this.#known.get(key);
    if (known && this.#nowMs() - known.sinceMs <= AGE_MS_MAX) {
      try {
        return (await known.answer) as T;
      } catch {
        // The signal of the other caller may have ended that request.
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
