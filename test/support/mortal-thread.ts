import { openSync } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import type { Request } from '../../src/workers/protocol.ts';

/** Imported before a thread's entry: kills the thread in a task, as `globalThis.death` says. */
interface Death {
  readonly task: string;
  readonly how?: 'throw' | 'exit';
  /** A file that it makes first. While the file exists, no thread dies. */
  readonly once?: string;
}

function isMyTurn(death: Death): boolean {
  if (death.once === undefined) return true;
  try {
    openSync(death.once, 'wx');
    return true;
  } catch {
    return false;
  }
}

parentPort?.on('message', (request: Request) => {
  const { death } = globalThis as unknown as { death: Death };
  if (request.kind !== 'task' || request.call.task !== death.task || !isMyTurn(death)) return;
  if (death.how === 'exit') process.exit(7);
  // The error ends the thread only after the other listener, which must not answer.
  Object.assign(request, { kind: 'lost' });
  throw new Error('killed on purpose');
});
