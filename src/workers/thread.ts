import { parentPort, workerData } from 'node:worker_threads';
import { assert, messageOf } from '../base/index.ts';
import type { Reply, Request, ThreadData } from './protocol.ts';
import { TaskRunner } from './tasks.ts';

assert(parentPort, 'this file is the entry of a worker thread');
const port = parentPort;
const { keys, memory, threadIndex } = workerData as ThreadData;
const runner = new TaskRunner(keys, memory, threadIndex);
const reply = (message: Reply): void => {
  port.postMessage(message);
};

function run(request: Extract<Request, { kind: 'task' }>): Reply {
  const { id, task, parameters } = request;
  try {
    return { kind: 'done', id, result: runner.perform(task, parameters) };
  } catch (error) {
    const code =
      error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
    const stack = error instanceof Error ? (error.stack ?? '') : '';
    return { kind: 'failed', id, error: { code, message: messageOf(error), stack } };
  }
}

port.on('message', (request: Request) => {
  if (request.kind === 'stop') port.close();
  else reply(run(request));
});
reply({ kind: 'ready' });
