import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { lifeWith, watchEnd } from '../../src/cli/hung-exit.ts';

describe('an end that was asked for', () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });
  const watch = (isWaitingForStorage: boolean): { life: { moved: number }; said: string[] } => {
    const life = { moved: 0, isWaitingForStorage };
    const said: string[] = [];
    watchEnd(life, (text) => said.push(text));
    return { life, said };
  };

  it.each([
    ['a disk', false, 30],
    ['the storage', true, 300],
  ])('that waits for %s hangs once nothing has moved for that long', (what, isStorage, seconds) => {
    const { said } = watch(isStorage);
    vi.advanceTimersByTime((seconds - 1) * 1000);
    expect(said).toEqual([]);
    vi.advanceTimersByTime(60_000);
    expect(said).toEqual([
      `interrupted, and nothing has moved for ${seconds} s since: ${what} hangs; stopping without waiting for it`,
    ]);
  });

  it('does not hang while something moves, as packs that are put one a minute', () => {
    const { life, said } = watch(true);
    for (let minutes = 0; minutes < 60; minutes++) {
      life.moved++;
      vi.advanceTimersByTime(60_000);
    }
    expect(said).toEqual([]);
  });

  it('is not watched any more when it came', () => {
    const said: string[] = [];
    const stop = watchEnd({ moved: 0, isWaitingForStorage: false }, (text) => said.push(text));
    vi.advanceTimersByTime(20_000);
    stop();
    vi.advanceTimersByTime(600_000);
    expect(said).toEqual([]);
  });

  it('counts what is read as life, beside what the repository tells', () => {
    const repository = { moved: 1, isWaitingForStorage: false };
    let bytesRead = 10;
    const life = lifeWith(repository, () => bytesRead);
    expect(life.moved).toBe(11);
    bytesRead = 20;
    repository.isWaitingForStorage = true;
    expect(life).toMatchObject({ moved: 21, isWaitingForStorage: true });
  });
});
