import { setImmediate as nextRound } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { RunTurns } from '../../../src/server/restores/run-turns.ts';

/** Turns, and restores that write to `went` when they continue. */
function rig() {
  const turns = new RunTurns({ onWaiting: () => told.push('waiting') });
  const told: string[] = [];
  const went: string[] = [];
  const enter = (name: string) => {
    const turn = turns.take();
    const abort = new AbortController();
    const wait = Promise.withResolvers<undefined>();
    const begin = (): Promise<void> =>
      turns
        .waitBeside(turn, () => wait.promise, abort.signal)
        .then(
          () => void went.push(name),
          () => void went.push(`${name} failed`),
        );
    return { turn, abort, wait, begin };
  };
  return { turns, told, went, enter };
}

describe('turns of restores', () => {
  it('are one at a time, and another one has its turn while one only waits', async () => {
    const { turns, told, went, enter } = rig();
    const first = enter('first');
    expect(turns.isFree).toBe(false);
    void first.begin();
    expect(turns.isFree).toBe(true);
    expect(told).toEqual(['waiting']);
    const second = enter('second');
    first.wait.resolve(undefined);
    await nextRound();
    expect(went).toEqual([]);
    turns.leave(second.turn);
    await nextRound();
    expect(went).toEqual(['first']);
    expect(turns.isFree).toBe(false);
  });

  it('go to those that have waited before any new one, in the order in which their waits ended', async () => {
    const { turns, went, enter } = rig();
    const [first, second] = [enter('first'), enter('second')];
    void first.begin();
    void second.begin();
    const third = enter('third');
    second.wait.resolve(undefined);
    await nextRound();
    first.wait.resolve(undefined);
    await nextRound();
    turns.leave(third.turn);
    await nextRound();
    expect(went).toEqual(['second']);
    expect(turns.isFree).toBe(false);
    turns.leave(second.turn);
    await nextRound();
    expect(went).toEqual(['second', 'first']);
  });

  it('are not kept by one whose wait fails, nor by one that is ended before its turn', async () => {
    const { turns, went, enter } = rig();
    const [failing, ended, last] = [enter('failing'), enter('ended'), enter('last')];
    for (const { begin } of [failing, ended, last]) void begin();
    const running = enter('running');
    failing.wait.reject(new Error('no volume'));
    ended.wait.resolve(undefined);
    await nextRound();
    last.wait.resolve(undefined);
    await nextRound();
    ended.abort.abort();
    await nextRound();
    expect(went).toEqual(['failing failed', 'ended']);
    for (const { turn } of [failing, ended, running]) turns.leave(turn);
    await nextRound();
    expect(went).toEqual(['failing failed', 'ended', 'last']);
    turns.leave(last.turn);
    expect(turns.isFree).toBe(true);
  });

  it('are kept by a fifth that waits, since each takes scratch space', async () => {
    const { turns, told, enter } = rig();
    const all = ['1', '2', '3', '4', '5'].map(enter);
    for (const { begin } of all) void begin();
    await nextRound();
    expect(told).toHaveLength(4);
    expect(turns.isFree).toBe(false);
  });
});
