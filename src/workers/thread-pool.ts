import { asError, CodedError, messageOf, shareOfDescriptors } from '../base/index.ts';
import { type Arena, type CodecKeys, THREADS_MAX } from '../codec/index.ts';
import type { ThreadPoolFactory } from '../volume-files/index.ts';
import type { TaskCall, TaskName, TaskResult, ThreadData } from './protocol.ts';
import { TaskPool } from './task-pool.ts';
import {
  type SlotExit,
  type StartedWorker,
  startWorker,
  type Task,
  type ThreadEnd,
  ThreadSlot,
} from './thread-slot.ts';

/** Tasks that a thread has at hand: one runs and one waits, so that it never idles. */
const TASKS_PER_THREAD = 2;
/** Dead threads are replaced this many times in all. Our choice: more means a bug. */
const REPLACEMENTS_MAX = 3;
/** Threads for each descriptor. A thread takes 4 for its event loop, and 1 for reading. */
const THREADS_SHARE = 1 / 48;
const THREAD_ENTRY = new URL(
  import.meta.url.endsWith('.ts') ? './thread.ts' : './thread.js',
  import.meta.url,
);

/** While the key is derived and the program is loaded, more threads would only slow that down. */
const STARTED_AT_ONCE = 1;

/**
 * Pools of `wanted` worker threads: at most {@link THREADS_MAX}, and fewer if the limit of open
 * files is low. They end with `close`, and never keep the process alive. The first thread of the
 * first pool starts at once, to be ready when the keys are known. Other threads start when a task
 * has to wait.
 */
export function createThreadPool(wanted: number, entry: URL = THREAD_ENTRY): ThreadPoolFactory {
  const threads = Math.min(wanted, shareOfDescriptors(THREADS_SHARE, THREADS_MAX));
  const start = (): StartedWorker => startWorker(entry);
  const started = Array.from({ length: Math.min(threads, STARTED_AT_ONCE) }, start);
  return (keys, arena) =>
    new WorkerPool(keys, arena, { threads, started: started.splice(0), start });
}

/** The error for the callers of a dead thread. The reason is reported nowhere else. */
function threadDied({ exitCode, error }: ThreadEnd): CodedError {
  const reason = error === undefined ? `it exited with code ${exitCode}` : messageOf(error);
  return new CodedError('THREAD_DIED', `a worker thread died: ${reason}`, { cause: error });
}

interface Threads {
  readonly threads: number;
  readonly started: StartedWorker[];
  readonly start: () => StartedWorker;
}

class WorkerPool extends TaskPool {
  readonly threads: number;
  tasksDone = 0;
  readonly #keys: CodecKeys;
  readonly #start: () => StartedWorker;
  readonly #slots: ThreadSlot[];
  readonly #queue: Task[] = [];
  #replacementsLeft = REPLACEMENTS_MAX;
  #failure: Error | undefined;
  /** Whether no more threads can be started. */
  #isGrown = false;

  constructor(keys: CodecKeys, arena: Arena, { threads, started, start }: Threads) {
    super(arena);
    this.threads = threads;
    this.#start = start;
    const { hash, encryption, secret, masterKey } = keys;
    this.#keys = { hash, encryption, secret, masterKey };
    this.#slots = [this.#startThread(1, started.pop())];
  }

  #startThread(threadIndex: number, started = this.#start()): ThreadSlot {
    const data: ThreadData = { keys: this.#keys, memory: this.arena.memory, threadIndex };
    return new ThreadSlot(started, data, {
      onFree: () => {
        this.tasksDone++;
        this.#dispatch();
      },
      onExit: (exit) => {
        this.#onExit(exit, threadIndex);
      },
    });
  }

  protected perform(call: TaskCall): Promise<TaskResult<TaskName>> {
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      this.#queue.push({ call, resolve, reject });
      this.#dispatch();
    });
  }

  /** Gives each task to the thread with the fewest tasks. */
  #dispatch(): void {
    while (this.#queue.length > 0) {
      const slot = this.#slots.reduce((a, b) => (b.pending < a.pending ? b : a));
      if (slot.pending >= TASKS_PER_THREAD) {
        if (!this.#grow()) return;
        continue;
      }
      slot.start(this.#queue.shift() as Task);
    }
  }

  /** Starts one more thread. Returns false if there are enough, or if the system refuses. */
  #grow(): boolean {
    if (this.#slots.length >= this.threads || this.#isGrown) return false;
    try {
      this.#slots.push(this.#startThread(this.#slots.length + 1));
      return true;
    } catch {
      // Continue with the existing threads.
      this.#isGrown = true;
      return false;
    }
  }

  #onExit({ lost, slot, end }: SlotExit, threadIndex: number): void {
    const error = threadDied(end);
    for (const task of lost) task.reject(error);
    if (this.#failure) return;
    if (this.#replacementsLeft === 0) {
      this.#fail(error);
      return;
    }
    this.#replacementsLeft--;
    try {
      this.#slots[this.#slots.indexOf(slot)] = this.#startThread(threadIndex);
    } catch (noThread) {
      this.#fail(asError(noThread));
      return;
    }
    this.#dispatch();
  }

  /** From here on every task fails, including waiting tasks. */
  #fail(error: Error): void {
    this.#failure = error;
    for (const task of this.#queue.splice(0)) task.reject(error);
  }

  async close(): Promise<void> {
    this.#failure ??= new CodedError('POOL_CLOSED', 'the worker threads have been stopped');
    for (const task of this.#queue.splice(0)) task.reject(this.#failure);
    await Promise.all(this.#slots.map((slot) => slot.stop()));
  }
}
