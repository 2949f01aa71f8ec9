import { describe, expect, it } from 'vitest';
import { FileWriters } from '../../../src/server/runs/file-writers.ts';

describe('who writes files of a backup or a restore', () => {
  it('is waited for when it is deleted, and others are kept out', async () => {
    const writers = new FileWriters();
    const { promise, resolve } = Promise.withResolvers<string>();
    const first = writers.run('u1', () => promise);
    const failing = writers.run('u1', () => Promise.reject(new Error('away')));
    await expect(failing).rejects.toThrow('away');
    let isClosed = false;
    const closing = writers.close('u1').then((isOver) => {
      isClosed = true;
      return isOver;
    });
    let hasBegun = false;
    const late = await writers.run('u1', () => Promise.resolve((hasBegun = true)));
    expect([late, hasBegun, isClosed]).toEqual([undefined, false, false]);
    expect(await writers.run('u2', () => Promise.resolve('other'))).toBe('other');
    resolve('done');
    expect([await first, await closing, await writers.close('u1')]).toEqual(['done', true, true]);
  });

  it('is told that it is deleted', async () => {
    const writers = new FileWriters();
    const stopped = Promise.withResolvers<string>();
    const task = writers.run('u1', (closing) => {
      closing.addEventListener('abort', () => {
        stopped.resolve('stopped');
      });
      return stopped.promise;
    });
    expect(await writers.close('u1')).toBe(true);
    expect(await task).toBe('stopped');
  });

  it('is not waited for without end', async () => {
    const writers = new FileWriters(5);
    void writers.run('u1', () => new Promise(() => undefined));
    expect(await writers.close('u1')).toBe(false);
  });
});
