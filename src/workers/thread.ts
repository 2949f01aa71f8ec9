import { parentPort } from 'node:worker_threads';
import { assert, codeOf, messageOf } from '../base/index.ts';
import type { Reply, Request } from './protocol.ts';
import { TaskRunner } from './tasks.ts';

assert(parentPort, 'this file is the entry point of a worker thread');
const port = parentPort;
let runner: TaskRunner | undefined;
const reply = (message: Reply): void => {
  port.postMessage(message);
};

function run(request: Extract<Request, { kind: 'task' }>): Reply {
  const { id, call } = request;
  assert(runner, 'a thread was given a task before it was given the keys');
  try {
    return { kind: 'done', id, result: runner.perform(call) };
  } catch (error) {
    const code = codeOf(error) ?? '';
    const stack = error instanceof Error ? (error.stack ?? '') : '';
    return { kind: 'failed', id, error: { code, message: messageOf(error), stack } };
  }
}

port.on('message', (request: Request) => {
  switch (request.kind) {
    case 'init': {
      const { keys, memory, threadIndex } = request.data;
      runner = new TaskRunner(keys, memory, threadIndex);
      break;
    }
    case 'task':
      reply(run(request));
      break;
    case 'stop':
      port.close();
  }
});
reply({ kind: 'ready' });
