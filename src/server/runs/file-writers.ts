import { setTimeout as sleep } from 'node:timers/promises';
import { CanceledError } from '../../base/index.ts';

/**
 * Backups and Restores whose files nobody may write any more. Our choice: UIDs do not come again,
 * and whoever still has one has it for seconds.
 */
const CLOSED_MAX = 10_000;
/** A writer that hangs is not waited for without end. Our choice. */
const ENDED_MS = 60_000;

interface Writing {
  readonly tasks: Set<Promise<unknown>>;
  readonly closing: AbortController;
}

/**
 * Who writes files of a Backup or Restore after its run, in this process. What a writer has begun
 * when it is deleted would be in the bucket after everything else of it is gone: its deletion keeps
 * others out, and waits for those that are under way.
 */
export class FileWriters {
  /** Tasks under way, by UID. */
  readonly #writing = new Map<string, Writing>();
  readonly #closed = new Set<string>();
  readonly #endedMs: number;

  constructor(endedMs = ENDED_MS) {
    this.#endedMs = endedMs;
  }

  /**
   * Undefined, without the task having been begun, where it is being deleted. The signal is aborted
   * when its deletion begins.
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

  /**
   * Resolves when nobody writes its files any more; false where somebody still does after a minute.
   * May be repeated.
   */
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
