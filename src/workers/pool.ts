import { Worker } from 'node:worker_threads';
import { asError, assert, CodedError, messageOf, shareOfDescriptors } from '../base/index.ts';
import {
  type Arena,
  type CodecKeys,
  type HashProgress,
  type Span,
  type SplitterSpec,
  THREADS_MAX,
} from '../codec/index.ts';
import type {
  DirectoryComparison,
  DirectoryListing,
  FileAttributes,
  FileRead,
  FileToRead,
  OpenFailure,
  OpenItem,
  PackedStream,
  PartialSpans,
  SealedItem,
  SealItem,
  ThreadPool,
  ThreadPoolFactory,
} from '../volume-files/index.ts';
import {
  packFilesToRead,
  packOpenItems,
  packSealItems,
  unpackFileReads,
  unpackSealed,
} from './messages.ts';
import type {
  Reply,
  Request,
  TaskCall,
  TaskName,
  TaskParameters,
  TaskResult,
  ThreadData,
} from './protocol.ts';
import { TaskRunner } from './tasks.ts';

/** Tasks that a thread has at hand: one running, one waiting, so that it never idles for a message. */
const TASKS_PER_THREAD = 2;
/** Threads that died are replaced this many times in all. Our choice: more means a bug, not bad luck. */
const REPLACEMENTS_MAX = 3;
/** Threads for each descriptor that this process may have: one takes 4 for its event loop, and 1 for what it reads. */
const THREADS_SHARE = 1 / 48;
/** A thread that is asked to stop ends its task first; the longest take seconds. */
const STOP_MS_MAX = 10_000;
/** What a thread may take to end once it is told to end at once. One that is blocked in the kernel never does. */
const TERMINATE_MS_MAX = 1000;
const THREAD_ENTRY = new URL(
  import.meta.url.endsWith('.ts') ? './thread.ts' : './thread.js',
  import.meta.url,
);

interface Task {
  readonly call: TaskCall;
  readonly resolve: (result: TaskResult<TaskName>) => void;
  readonly reject: (error: unknown) => void;
}

/** Turns the methods of the contract into tasks by name. */
abstract class TaskPool implements ThreadPool {
  readonly arena: Arena;
  abstract readonly threads: number;
  abstract readonly tasksDone: number;
  protected abstract perform(call: TaskCall): Promise<TaskResult<TaskName>>;
  abstract close(): Promise<void>;

  constructor(arena: Arena) {
    this.arena = arena;
  }

  /** The answer to a call is the result of its task: both sides hold the same table, and a thread answers by the call's number. */
  async #run<K extends TaskName>(
    task: K,
    ...parameters: TaskParameters<K>
  ): Promise<TaskResult<K>> {
    return await this.perform({ task, parameters } as TaskCall);
  }

  hash(messages: readonly (readonly Span[])[]): Promise<Uint8Array[]> {
    return this.#run('hash', messages);
  }

  hashPartly(messages: readonly PartialSpans[]): Promise<HashProgress[]> {
    return this.#run('hashPartly', messages);
  }

  cut(spec: SplitterSpec, piece: Span, count: number): Promise<number[]> {
    return this.#run('cut', spec, piece, count);
  }

  async seal(items: readonly SealItem[], address: number): Promise<SealedItem[]> {
    return unpackSealed(await this.#run('seal', packSealItems(items), address));
  }

  async readFiles(files: readonly FileToRead[], slab: Span): Promise<FileRead[]> {
    return unpackFileReads(await this.#run('readFiles', packFilesToRead(files), slab));
  }

  readDirectory(path: string | Uint8Array, entriesMax: number): Promise<DirectoryListing> {
    return this.#run('readDirectory', path, entriesMax);
  }

  lookAt(path: string | Uint8Array, names: Uint8Array): Promise<DirectoryListing> {
    return this.#run('lookAt', path, names);
  }

  compareDirectory(
    path: string | Uint8Array,
    before: PackedStream,
    special: readonly string[],
    entriesMax: number,
  ): Promise<DirectoryComparison> {
    return this.#run('compareDirectory', path, before, special, entriesMax);
  }

  open(items: readonly OpenItem[]): Promise<OpenFailure[]> {
    return this.#run('open', packOpenItems(items));
  }

  setAttributes(
    descriptor: number,
    { mode, uid, gid, mtimeNs }: FileAttributes,
    isLink: boolean,
  ): Promise<void> {
    return this.#run('setAttributes', descriptor, { mode, uid, gid, mtimeNs }, isLink);
  }

  syncFilesystem(descriptor: number): Promise<boolean> {
    return this.#run('syncFilesystem', descriptor);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** The same work on the calling thread: for tests, simulations and one-core machines. */
export function createInProcessPool(keys: CodecKeys, arena: Arena): ThreadPool {
  return new InProcessPool(keys, arena);
}

class InProcessPool extends TaskPool {
  readonly threads = 1;
  tasksDone = 0;
  readonly #runner: TaskRunner;

  constructor(keys: CodecKeys, arena: Arena) {
    super(arena);
    this.#runner = new TaskRunner(keys, arena.memory, 1);
  }

  protected async perform(call: TaskCall): Promise<TaskResult<TaskName>> {
    // As with threads, the answer never comes before the caller goes on.
    await Promise.resolve();
    try {
      return this.#runner.perform(call);
    } finally {
      this.tasksDone++;
    }
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

/**
 * Pools of so many worker threads, at most {@link THREADS_MAX}, and fewer where few files may be open. They end with `close`, and never keep the process alive. The threads
 * of the first pool start at once, so that they are up when its keys are known.
 */
export function createThreadPool(wanted: number, entry: URL = THREAD_ENTRY): ThreadPoolFactory {
  const threads = Math.min(wanted, shareOfDescriptors(THREADS_SHARE, THREADS_MAX));
  const start = (): StartedWorker => startWorker(entry);
  const started = Array.from({ length: threads }, start);
  return (keys, arena) =>
    new WorkerPool(keys, arena, { threads, started: started.splice(0), start });
}

interface StartedWorker {
  readonly worker: Worker;
  /** Resolves with the reason; also for one that ended before anybody asked. */
  readonly exited: Promise<ThreadEnd>;
}

interface ThreadEnd {
  readonly exitCode: number;
  /** What it did not catch, also that it ran out of memory. */
  readonly error: unknown;
}

/** Throws `NO_THREAD`. */
function startWorker(entry: URL): StartedWorker {
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
    return new Worker(entry);
  } catch (cause) {
    // Node tells no more than the code.
    const text = `a worker thread cannot be started (${messageOf(cause)}): see how many processes and threads this container or user may have`;
    throw new CodedError('NO_THREAD', text, { cause });
  }
}

/** An error for the callers of a thread that ended: the only place where its reason is told. */
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

  constructor(keys: CodecKeys, arena: Arena, { threads, started, start }: Threads) {
    super(arena);
    this.threads = threads;
    this.#start = start;
    const { hash, encryption, secret, masterKey } = keys;
    this.#keys = { hash, encryption, secret, masterKey };
    this.#slots = Array.from({ length: threads }, (_, i) =>
      this.#startThread(i + 1, started.pop()),
    );
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

  /** Tasks go to the thread with the least at hand. */
  #dispatch(): void {
    while (this.#queue.length > 0) {
      const slot = this.#slots.reduce((a, b) => (b.pending < a.pending ? b : a));
      if (slot.pending >= TASKS_PER_THREAD) return;
      slot.start(this.#queue.shift() as Task);
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

  /** From here on every task fails, also those that wait. */
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

interface SlotExit {
  readonly lost: readonly Task[];
  readonly slot: ThreadSlot;
  readonly end: ThreadEnd;
}

interface SlotEvents {
  onFree: () => void;
  onExit: (exit: SlotExit) => void;
}

/** One thread and the tasks that it has not answered. */
class ThreadSlot {
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
    // A process with an unanswered task stays alive; an idle pool does not hold it.
    this.#worker.ref();
    const request: Request = { kind: 'task', id, call: task.call };
    this.#worker.postMessage(request);
  }

  #onReply(reply: Reply): void {
    if (reply.kind === 'ready') return;
    const task = this.#tasks.get(reply.id);
    // It was given up, and came back after all.
    if (!task && this.#stopping) return;
    assert(task, 'a thread answered a task that it was not given');
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
