import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { WorkQueue } from '../../src/kube/index.ts';

const newQueue = (): WorkQueue =>
  new WorkQueue({ backoffFirstMs: 10, backoffMaxMs: 80, random: () => 1 });

/** Its timers and its clock are those of the test. */
beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Takes a key, and says after how many milliseconds it came. */
async function taken(queue: WorkQueue): Promise<{ key: string | undefined; ms: number }> {
  const start = performance.now();
  let key: string | undefined;
  let isOver = false;
  const task = queue.take().then((found) => {
    key = found;
    isOver = true;
  });
  while (!isOver) await vi.advanceTimersByTimeAsync(1);
  await task;
  return { key, ms: performance.now() - start };
}

describe('a work queue', () => {
  it('holds a key once, however often it is added', async () => {
    const queue = newQueue();
    queue.add('a');
    queue.add('a');
    queue.add('b');
    expect(queue.length).toBe(2);
    expect([await queue.take(), await queue.take()]).toEqual(['a', 'b']);
    expect(queue.length).toBe(0);
  });

  it('gives a key that is being looked at back only when that look is over', async () => {
    const queue = newQueue();
    queue.add('a');
    await queue.take();
    queue.add('a');
    expect(queue.length).toBe(0);
    queue.done('a');
    expect(await queue.take()).toBe('a');
  });

  it('adds later, the first of several times', async () => {
    const queue = newQueue();
    queue.addAfter('a', 60);
    queue.addAfter('a', 20);
    queue.addAfter('a', 40);
    expect(await taken(queue)).toEqual({ key: 'a', ms: 20 });
    queue.done('a');
    await vi.advanceTimersByTimeAsync(80);
    expect(queue.length).toBe(0);
  });

  it('waits longer with each failure, until it is told to forget', async () => {
    const queue = newQueue();
    const waited = async (): Promise<number> => {
      queue.addFailed('a');
      const { ms } = await taken(queue);
      queue.done('a');
      return ms;
    };
    const first = [await waited(), await waited(), await waited(), await waited(), await waited()];
    expect(first).toEqual([10, 20, 40, 80, 80]);
    queue.forget('a');
    expect(await waited()).toBe(10);
  });

  it('lets who waits go when it is closed', async () => {
    const queue = newQueue();
    const key = queue.take();
    queue.addAfter('late', 10);
    queue.close();
    expect(await key).toBeUndefined();
    await vi.advanceTimersByTimeAsync(30);
    queue.add('a');
    expect(await queue.take()).toBeUndefined();
  });
});
