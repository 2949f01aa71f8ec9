import { expect, it } from 'vitest';
import { ManualClock, SECOND_NS, silentLogger } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { CheckpointTimer } from '../../src/uploader/checkpoint.ts';
import { recordingLogger } from '../support/repositories.ts';

const MINUTE_NS = 60n * SECOND_NS;

it('packs being filled are closed every minute at first, and after 5 % of the time later', async () => {
  const clock = new ManualClock(1_700_000_000n * SECOND_NS);
  const closedAt: number[] = [];
  let minute = 0;
  let named = 0;
  const contents = {
    session: { durableBytes: 0, durableEntries: 0 },
    flush: () => {
      closedAt.push(minute);
      return Promise.resolve();
    },
    checkpoint: () => {
      named++;
      return Promise.resolve();
    },
    refreshIfOld: () => Promise.resolve(),
  };
  const repository = { clock, contents } as unknown as Repository;
  const options = { intervalNs: MINUTE_NS, bytes: 2 ** 31, logger: silentLogger };
  const timer = new CheckpointTimer(repository, options);
  const DAYS_3 = 3 * 24 * 60;
  for (minute = 1; minute <= DAYS_3; minute++) {
    clock.advance(MINUTE_NS);
    timer.look();
    await new Promise((resolve) => setImmediate(resolve));
  }
  await timer.stop();
  // What is put is named by an index every minute all the same.
  expect(closedAt.length + named).toBe(DAYS_3);
  expect(closedAt.slice(0, 20)).toEqual(Array.from({ length: 20 }, (_, i) => i + 1));
  expect(closedAt.length).toBeLessThan(150);
  for (const [i, at] of closedAt.entries()) {
    expect(at - (closedAt[i - 1] ?? 0)).toBeLessThanOrEqual(Math.max(1, Math.ceil(at / 20)));
  }
});

it('an index that cannot be read anew at a checkpoint is warned of; only a failed flush ends the upload', async () => {
  const clock = new ManualClock(1_700_000_000n * SECOND_NS);
  let flushes = 0;
  let isBroken = false;
  const contents = {
    session: { durableBytes: 0, durableEntries: 0 },
    flush: () => {
      flushes++;
      return isBroken ? Promise.reject(new Error('the flush failed')) : Promise.resolve();
    },
    refreshIfOld: () => Promise.reject(new Error('the listing failed')),
  };
  const repository = { clock, contents } as unknown as Repository;
  const logger = recordingLogger();
  const timer = new CheckpointTimer(repository, { intervalNs: MINUTE_NS, bytes: 2 ** 31, logger });
  const lookLater = async (): Promise<void> => {
    clock.advance(MINUTE_NS);
    timer.look();
    await new Promise((resolve) => setImmediate(resolve));
  };
  for (let minute = 1; minute <= 3; minute++) {
    await lookLater();
    timer.assertHealthy();
    expect(flushes).toBe(minute);
  }
  expect(logger.messages).toContain('the index could not be read anew');
  expect(logger.messages).not.toContain('checkpoint failed');
  isBroken = true;
  await lookLater();
  expect(() => {
    timer.assertHealthy();
  }).toThrow('the flush failed');
  await timer.stop();
});

it('a look at what others wrote keeps no checkpoint waiting, however long it takes', async () => {
  const clock = new ManualClock(1_700_000_000n * SECOND_NS);
  let checkpoints = 0;
  let looks = 0;
  let answer = (): void => undefined;
  const count = (): Promise<void> => {
    checkpoints++;
    return Promise.resolve();
  };
  const contents = {
    session: { durableBytes: 0, durableEntries: 0 },
    flush: count,
    checkpoint: count,
    // A large index on a slow storage.
    refreshIfOld: () => {
      looks++;
      return new Promise<void>((resolve) => (answer = resolve));
    },
  };
  const repository = { clock, contents } as unknown as Repository;
  const options = { intervalNs: MINUTE_NS, bytes: 2 ** 31, logger: silentLogger };
  const timer = new CheckpointTimer(repository, options);
  for (let minute = 1; minute <= 30; minute++) {
    clock.advance(MINUTE_NS);
    timer.look();
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(checkpoints).toBe(30);
  expect(looks).toBe(1);
  // Nothing goes on after the end.
  let hasStopped = false;
  const stopped = timer.stop().then(() => (hasStopped = true));
  await new Promise((resolve) => setImmediate(resolve));
  expect(hasStopped).toBe(false);
  answer();
  await stopped;
});
