import { setTimeout as sleep } from 'node:timers/promises';
import { CanceledError } from '../../base/index.ts';

/** Closed UIDs to remember. Our choice: late writers come within seconds. */
const CLOSED_MAX = 10_000;
/** Longest wait for a writer that hangs. Our choice. */
const ENDED_MS = 60_000;

interface Writing {
  readonly tasks: Set<Promise<unknown>>;
  readonly closing: AbortController;
}

/**
 * Tracks tasks of this process that write files of a Backup or Restore after its run. A deletion
 * blocks new tasks and waits for old ones: their files would stay in the bucket.
 */
export class FileWriters {
  readonly #writing = new Map<string, Writing>();
  readonly #closed = new Set<string>();
  readonly #endedMs: number;

  constructor(endedMs = ENDED_MS) {
    this.#endedMs = endedMs;
  }

  /**
   * Returns undefined, without running the task, once the deletion has begun. A later deletion
   * aborts the signal.
   */
  async run<T>(uid: string, task: (closing: AbortSignal) => Promise<T>): Promise<T | undefined> {
    if (this.#closed.has(uid)) return undefined;
    const writing = this.#writing.get(uid) ?? {
      tasks: new Set(),
      closing: new AbortController(),
    };
    this.#writing.set(uid, writing);
    const { tasks, closing } = writing;
    const running = task(closing.signal);
    tasks.add(running);
    try {
      return await running;
    } finally {
      tasks.delete(running);
      if (tasks.size === 0) this.#writing.delete(uid);
    }
  }

  /** Waits for the running tasks. False if one still runs after a minute. Repeatable. */
  async close(uid: string): Promise<boolean> {
    this.#closed.add(uid);
    const [oldest] = this.#closed;
    if (this.#closed.size > CLOSED_MAX && oldest !== undefined) this.#closed.delete(oldest);
    const { tasks, closing } = this.#writing.get(uid) ?? {};
    closing?.abort(new CanceledError('user'));
    const timer = new AbortController();
    const late = sleep(this.#endedMs, false, { signal: timer.signal }).catch(() => false);
    const over = Promise.allSettled([...(tasks ?? [])]).then(() => true);
    const isOver = await Promise.race([over, late]);
    timer.abort();
    return isOver;
  }
}
