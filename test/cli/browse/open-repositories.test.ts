import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ManualClock, MINUTE_NS, silentLogger } from '../../../src/base/index.ts';
import { OpenRepositories } from '../../../src/cli/browse/open-repositories.ts';
import type { KubeClient } from '../../../src/kube/index.ts';
import type { Repository } from '../../../src/repository/index.ts';

const never = new AbortController().signal;
const placeOf = (volumeNamespace: string) => ({ storageLocation: 'default', volumeNamespace });

describe('repositories that are open for visitors', () => {
  const clock = new ManualClock(0n);
  let opened: string[];
  let closed: string[];
  /** Openings wait for it. */
  let gate: Promise<void>;
  let repositories: OpenRepositories;
  beforeEach(() => {
    vi.useFakeTimers();
    opened = [];
    closed = [];
    gate = Promise.resolve();
    repositories = new OpenRepositories({
      client: { clock } as unknown as KubeClient,
      namespace: 'velero',
      logger: silentLogger,
      withRepository: async ({ volumeNamespace }, _session, work) => {
        opened.push(volumeNamespace);
        await gate;
        if (volumeNamespace === 'bad') throw new Error('no such bucket');
        await work({ name: volumeNamespace } as unknown as Repository);
        closed.push(volumeNamespace);
      },
    });
  });
  afterEach(async () => {
    await repositories[Symbol.asyncDispose]();
    vi.useRealTimers();
  });

  it('many visitors share one, which is closed after some idle minutes', async () => {
    const places = [placeOf('a'), placeOf('a'), placeOf('a')];
    const loans = await Promise.all(places.map((place) => repositories.borrow(place, never)));
    for (const loan of loans) loan[Symbol.dispose]();
    await vi.advanceTimersByTimeAsync(4 * 60_000);
    using again = await repositories.borrow(placeOf('a'), never);
    await vi.advanceTimersByTimeAsync(20 * 60_000);
    expect([opened, closed]).toEqual([['a'], []]);
    again[Symbol.dispose]();
    await vi.advanceTimersByTimeAsync(6 * 60_000);
    expect([closed, repositories.size]).toEqual([['a'], 0]);
  });

  it('no more than four are open: a fifth takes the place of the one that is idle for longest', async () => {
    const held = await Promise.all(
      ['a', 'b', 'c', 'd'].map((name) => repositories.borrow(placeOf(name), never)),
    );
    await expect(repositories.borrow(placeOf('e'), never)).rejects.toMatchObject({
      code: 'REPOSITORIES_BUSY',
      retry: 'backoff',
    });
    held[2]?.[Symbol.dispose]();
    held[1]?.[Symbol.dispose]();
    held.push(await repositories.borrow(placeOf('e'), never));
    await vi.advanceTimersByTimeAsync(0);
    expect(closed).toEqual(['c']);
    for (const loan of held) loan[Symbol.dispose]();
  });

  it('one that is too old, or with which something was wrong, is not lent again', async () => {
    using first = await repositories.borrow(placeOf('a'), never);
    clock.advance(20n * MINUTE_NS);
    using second = await repositories.borrow(placeOf('a'), never);
    expect([opened.length, first.ageNs > second.ageNs]).toEqual([2, true]);
    second.retire();
    using third = await repositories.borrow(placeOf('a'), never);
    expect([opened.length, closed, third.ageNs]).toEqual([3, [], 0n]);
    first[Symbol.dispose]();
    second[Symbol.dispose]();
    await vi.advanceTimersByTimeAsync(0);
    expect(closed.length).toBe(2);
  });

  it('one that could not be opened is tried again by the next visitor', async () => {
    const fails = () =>
      expect(repositories.borrow(placeOf('bad'), never)).rejects.toThrow('no such');
    await fails();
    await fails();
    expect([opened.length, repositories.size]).toEqual([2, 0]);
  });

  it('a visitor who goes while it is opened does not take it from others', async () => {
    const { promise, resolve } = Promise.withResolvers<undefined>();
    gate = promise;
    const gone = new AbortController();
    const leaves = repositories.borrow(placeOf('a'), gone.signal);
    const stays = repositories.borrow(placeOf('a'), never);
    gone.abort(new Error('gone'));
    await expect(leaves).rejects.toThrow('gone');
    resolve(undefined);
    using loan = await stays;
    expect([opened, closed, loan.ageNs]).toEqual([['a'], [], 0n]);
  });

  it('when the server ends all are closed', async () => {
    await repositories.borrow(placeOf('a'), never);
    await repositories[Symbol.asyncDispose]();
    expect(closed).toEqual(['a']);
    await expect(repositories.borrow(placeOf('b'), never)).rejects.toThrow('the server ends');
  });
});
