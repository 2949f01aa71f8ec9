import type { Arena, CodecKeys } from '../codec/index.ts';
import type { ThreadPool } from '../volume-files/index.ts';
import type { TaskCall, TaskName, TaskResult } from './protocol.ts';
import { TaskPool } from './task-pool.ts';
import { TaskRunner } from './tasks.ts';

/** Does the same work on the calling thread: for tests, simulations and one-core machines. */
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
    // As with threads, the caller continues before the answer comes.
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
