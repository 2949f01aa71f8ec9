import { Worker } from 'node:worker_threads';
import { assert, CodedError, messageOf } from '../base/index.ts';
import type { Reply, Request, TaskCall, TaskName, TaskResult, ThreadData } from './protocol.ts';

/** A thread finishes its task before it stops. The longest tasks take seconds. */
const STOP_MS_MAX = 10_000;
/** Time for a terminated thread to end. A thread that is blocked in the kernel never ends. */
const TERMINATE_MS_MAX = 1000;

export interface Task {
  readonly call: TaskCall;
  readonly resolve: (result: TaskResult<TaskName>) => void;
  readonly reject: (error: unknown) => void;
}

export interface StartedWorker {
  readonly worker: Worker;
  /** Resolves with the reason, also if the thread ended earlier. */
  readonly exited: Promise<ThreadEnd>;
}

export interface ThreadEnd {
  readonly exitCode: number;
  /** The uncaught error, also if the thread ran out of memory. */
  readonly error: unknown;
}

/** Throws `NO_THREAD`. */
export function startWorker(entry: URL): StartedWorker {
  const worker = newWorker(entry);
  worker.unref();
  let failure: unknown;
  worker.on('error', (error: unknown) => {
    failure = error;
  });
  const exited = new Promise<ThreadEnd>((resolve) => {
    worker.on('exit', (exitCode) => {
      resolve({ exitCode, error: failure });
    });
  });
  return { worker, exited };
}

function newWorker(entry: URL): Worker {
  try {
    // Node closes descriptors that threads open by libc, and would warn of each.
    return new Worker(entry, { trackUnmanagedFds: false });
  } catch (cause) {
    // Node reports only the code.
    const text = `a worker thread cannot be started (${messageOf(cause)}): check how many processes and threads this container or user may have`;
    throw new CodedError('NO_THREAD', text, { cause });
  }
}

export interface SlotExit {
  readonly lost: readonly Task[];
  readonly slot: ThreadSlot;
  readonly end: ThreadEnd;
}

interface SlotEvents {
  onFree: () => void;
  onExit: (exit: SlotExit) => void;
}

/** A thread and its unanswered tasks. */
export class ThreadSlot {
  readonly #worker: Worker;
  readonly #tasks = new Map<number, Task>();
  readonly #exited: Promise<void>;
  #nextId = 0;
  #stopping = false;

  constructor({ worker, exited }: StartedWorker, data: ThreadData, events: SlotEvents) {
    this.#worker = worker;
    this.#worker.on('message', (reply: Reply) => {
      this.#onReply(reply);
      events.onFree();
    });
    this.#exited = exited.then((end) => {
      if (this.#stopping) this.#giveUpTasks();
      else events.onExit({ lost: this.#takeTasks(), slot: this, end });
    });
    const request: Request = { kind: 'init', data };
    this.#worker.postMessage(request);
  }

  get pending(): number {
    return this.#tasks.size;
  }

  start(task: Task): void {
    const id = this.#nextId++;
    this.#tasks.set(id, task);
    // An unanswered task keeps the process alive; an idle pool does not.
    this.#worker.ref();
    const request: Request = { kind: 'task', id, call: task.call };
    this.#worker.postMessage(request);
  }

  #onReply(reply: Reply): void {
    if (reply.kind === 'ready') return;
    const task = this.#tasks.get(reply.id);
    // The task was given up, but its answer came after all.
    if (!task && this.#stopping) return;
    assert(task, 'a thread answered a task that it had not been given');
    this.#tasks.delete(reply.id);
    if (this.#tasks.size === 0) this.#worker.unref();
    if (reply.kind === 'done') task.resolve(reply.result);
    else task.reject(rebuildError(reply.error));
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    const request: Request = { kind: 'stop' };
    this.#worker.postMessage(request);
    this.#worker.ref();
    if (await endsWithin(this.#exited, STOP_MS_MAX)) return;
    void this.#worker.terminate();
    if (await endsWithin(this.#exited, TERMINATE_MS_MAX)) return;
    this.#giveUpTasks();
  }

  #takeTasks(): Task[] {
    const tasks = [...this.#tasks.values()];
    this.#tasks.clear();
    return tasks;
  }

  #giveUpTasks(): void {
    for (const task of this.#takeTasks()) task.reject(new CodedError('POOL_CLOSED', 'stopped'));
  }
}

async function endsWithin(ended: Promise<void>, timeoutMs: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), timeoutMs);
  });
  const isOver = await Promise.race([ended.then(() => true), late]);
  clearTimeout(timer);
  return isOver;
}

/** A structured clone drops class and code, so errors travel as plain fields. */
function rebuildError({
  code,
  message,
  stack,
}: {
  code: string;
  message: string;
  stack: string;
}): Error {
  const system = /^E[A-Z0-9]+$/.test(code);
  if (system) return Object.assign(new Error(message), { code, syscall: 'worker', stack });
  if (code !== '') return new CodedError(code, message);
  return Object.assign(new Error(message), { stack });
}
