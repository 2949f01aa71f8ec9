import { getEventListeners } from 'node:events';
import { expect, it } from 'vitest';
import { untilAborted } from '../../src/base/index.ts';

const never = new Promise<never>(() => undefined);

it('waits for the task, and leaves nothing with the signal', async () => {
  const { signal } = new AbortController();
  for (let i = 0; i < 20; i++) await untilAborted(signal, Promise.resolve());
  await expect(untilAborted(signal, Promise.reject(new Error('no')))).rejects.toThrow('no');
  expect(getEventListeners(signal, 'abort')).toEqual([]);
});

it('ends with the signal, also with one that was aborted before', async () => {
  const controller = new AbortController();
  const waiting = untilAborted(controller.signal, never);
  controller.abort();
  await waiting;
  await untilAborted(controller.signal, never);
  await untilAborted(controller.signal, Promise.reject(new Error('nobody waits for it')));
});
