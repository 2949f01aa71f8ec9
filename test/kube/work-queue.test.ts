import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { WorkQueue } from '../../src/kube/index.ts';

const newQueue = (): WorkQueue =>
  new WorkQueue({ backoffFirstMs: 10, backoffMaxMs: 80, random: () => 1 });

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
    const start = performance.now();
    expect(await queue.take()).toBe('a');
    expect(performance.now() - start).toBeLessThan(55);
    queue.done('a');
    await sleep(80);
    expect(queue.length).toBe(0);
  });

  it('waits longer with each failure, until it is told to forget', async () => {
    const queue = newQueue();
    const waited = async (): Promise<number> => {
      const start = performance.now();
      queue.addFailed('a');
      await queue.take();
      queue.done('a');
      return performance.now() - start;
    };
    const [first, , , fourth] = [await waited(), await waited(), await waited(), await waited()];
    expect(first).toBeLessThan(40);
    expect(fourth).toBeGreaterThan(70);
    queue.forget('a');
    expect(await waited()).toBeLessThan(40);
  });

  it('lets who waits go when it is closed', async () => {
    const queue = newQueue();
    const taken = queue.take();
    queue.addAfter('late', 10);
    queue.close();
    expect(await taken).toBeUndefined();
    await sleep(30);
    queue.add('a');
    expect(await queue.take()).toBeUndefined();
  });
});
