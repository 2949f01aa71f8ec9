import { setTimeout as sleep } from 'node:timers/promises';

/** Restores whose files nobody may write any more. Our choice: UIDs do not come again, and whoever still has one has it for seconds. */
const CLOSED_MAX = 10_000;
/** A writer that hangs does not keep a Restore for ever. Our choice. */
const ENDED_MS = 60_000;

/**
 * Who writes files of a Restore after its run, in this process. What a writer has begun when a Restore is deleted would be in the bucket after everything
 * else of it is gone: its deletion keeps others out, and waits for those that are under way.
 */
export class FileWriters {
  /** Tasks under way, by UID. */
  readonly #tasks = new Map<string, Set<Promise<unknown>>>();
  readonly #closed = new Set<string>();
  readonly #endedMs: number;

  constructor(endedMs = ENDED_MS) {
    this.#endedMs = endedMs;
  }

  /** Undefined, without the task having been begun, where the Restore is being deleted. */
  async run<T>(uid: string, task: () => Promise<T>): Promise<T | undefined> {
    if (this.#closed.has(uid)) return undefined;
    const tasks = this.#tasks.get(uid) ?? new Set();
    this.#tasks.set(uid, tasks);
    const running = task();
    tasks.add(running);
    try {
      return await running;
    } finally {
      tasks.delete(running);
      if (tasks.size === 0) this.#tasks.delete(uid);
    }
  }

  /** Resolves when nobody writes files of the Restore any more; false where somebody still does after a minute. May be repeated. */
  async close(uid: string): Promise<boolean> {
    this.#closed.add(uid);
    const [oldest] = this.#closed;
    if (this.#closed.size > CLOSED_MAX && oldest !== undefined) this.#closed.delete(oldest);
    const timer = new AbortController();
    const late = sleep(this.#endedMs, false, { signal: timer.signal }).catch(() => false);
    const over = Promise.allSettled([...(this.#tasks.get(uid) ?? [])]).then(() => true);
    const isOver = await Promise.race([over, late]);
    timer.abort();
    return isOver;
  }
}
