import { expect, it } from 'vitest';
import {
  ManualClock,
  OffsetClock,
  Secret,
  SECOND_NS,
  silentLogger,
  systemClock,
} from '../../../src/base/index.ts';
import { faulty } from '../../../src/blob/index.ts';
import { createFormat, type Repository } from '../../../src/repository/index.ts';
import { CheckpointTimer } from '../../../src/uploader/upload/checkpoint.ts';
import { open } from '../../support/hostile-bucket.ts';
import { MemoryStorage } from '../../support/memory-storage.ts';
import { DEFAULT_FORMAT, PASSWORD, recordingLogger, sameSalt } from '../../support/repositories.ts';

const MINUTE_NS = 60n * SECOND_NS;
const INTERVALS = { intervalNs: MINUTE_NS, indexIntervalNs: 10n * MINUTE_NS };
const { signal } = new AbortController();

/**
 * Kopia flushes 10 minutes after the last flush, at each checkpoint of 45 minutes, and at the end.
 */
function kopiaIndexes(seconds: number): number {
  let count = 1;
  let flushedAt = 0;
  for (let second = 1; second < seconds; second++) {
    if (second - flushedAt <= 600 && second % 2700 !== 0) continue;
    flushedAt = second;
    count++;
  }
  return count;
}

it.each([50, 200, 1000])(
  '1 TiB stored at %i MB/s has at most twice as many index blobs as Kopia writes',
  async (rate) => {
    const clock = new ManualClock(1_700_000_000n * SECOND_NS);
    const session = { durableBytes: 0, durableEntries: 0 };
    let indexes = 0;
    const name = (): Promise<void> => {
      if (session.durableEntries > 0) indexes++;
      session.durableBytes = 0;
      session.durableEntries = 0;
      return Promise.resolve();
    };
    const done = (): Promise<void> => Promise.resolve();
    const contents = {
      session,
      flush: name,
      checkpoint: name,
      closePacks: done,
      refreshIfOld: done,
    };
    const repository = { clock, contents } as unknown as Repository;
    const timer = new CheckpointTimer(repository, { ...INTERVALS, signal, logger: silentLogger });
    const bytes = rate * 1e6;
    const seconds = Math.ceil(2 ** 40 / bytes);
    for (let second = 1; second <= seconds; second++) {
      clock.advance(SECOND_NS);
      session.durableBytes += bytes;
      // Chunks of the default splitter.
      session.durableEntries += Math.ceil(bytes / (4 << 20));
      timer.look();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await timer.stop();
    // The flush at the end.
    await name();
    expect(indexes).toBeLessThanOrEqual(2 * kopiaIndexes(seconds));
    expect(indexes).toBeGreaterThan(1);
  },
  60_000,
);

it('packs being filled are closed every minute at first, and after 5 % of the time later', async () => {
  const clock = new ManualClock(1_700_000_000n * SECOND_NS);
  const closedAt: number[] = [];
  let minute = 0;
  let named = 0;
  const close = (): Promise<void> => {
    closedAt.push(minute);
    return Promise.resolve();
  };
  const contents = {
    session: { durableBytes: 0, durableEntries: 0 },
    closePacks: close,
    flush: () => {
      named++;
      return close();
    },
    checkpoint: () => {
      named++;
      return Promise.resolve();
    },
    refreshIfOld: () => Promise.resolve(),
  };
  const repository = { clock, contents } as unknown as Repository;
  const timer = new CheckpointTimer(repository, { ...INTERVALS, signal, logger: silentLogger });
  const DAYS_3 = 3 * 24 * 60;
  for (minute = 1; minute <= DAYS_3; minute++) {
    clock.advance(MINUTE_NS);
    timer.look();
    await new Promise((resolve) => setImmediate(resolve));
  }
  await timer.stop();
  // An index names the packs every ten minutes. Until then their own indexes do.
  expect(named).toBe(DAYS_3 / 10);
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
  const intervals = { intervalNs: MINUTE_NS, indexIntervalNs: MINUTE_NS };
  const timer = new CheckpointTimer(repository, { ...intervals, signal, logger });
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
  expect(logger.messages).toContain('the index could not be read again');
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
    closePacks: count,
    // A large index on a slow storage.
    refreshIfOld: () => {
      looks++;
      return new Promise<void>((resolve) => (answer = resolve));
    },
  };
  const repository = { clock, contents } as unknown as Repository;
  const intervals = { intervalNs: MINUTE_NS, indexIntervalNs: MINUTE_NS };
  const timer = new CheckpointTimer(repository, { ...intervals, signal, logger: silentLogger });
  for (let minute = 1; minute <= 30; minute++) {
    clock.advance(MINUTE_NS);
    timer.look();
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(checkpoints).toBe(30);
  expect(looks).toBe(1);
  // No checkpoint runs after the end.
  let hasStopped = false;
  const stopped = timer.stop().then(() => (hasStopped = true));
  await new Promise((resolve) => setImmediate(resolve));
  expect(hasStopped).toBe(false);
  answer();
  await stopped;
});

it('an abort ends a look at what others wrote that the storage does not answer, and nobody is warned', async () => {
  const clock = new OffsetClock(systemClock);
  const storage = new MemoryStorage({ clock });
  await createFormat(storage, new Secret(PASSWORD), DEFAULT_FORMAT, sameSalt());
  let isHanging = false;
  const asked = Promise.withResolvers<undefined>();
  const silent = faulty(storage, ({ operation, id }) => {
    if (!isHanging || operation !== 'list' || id !== 'x') return;
    asked.resolve(undefined);
    return new Promise<never>(() => undefined);
  });
  await using repository = await open({ storage: silent, clock });
  const stored = await repository.contents.write(Buffer.from('stored'), { prefix: '' });
  const controller = new AbortController();
  const logger = recordingLogger();
  const options = { ...INTERVALS, signal: controller.signal, logger };
  const timer = new CheckpointTimer(repository, options);
  // Make the contents durable first. Then the index is old, and the listing hangs.
  await repository.contents.flush();
  clock.offsetNs += 20n * MINUTE_NS;
  isHanging = true;
  timer.look();
  await asked.promise;
  const stopped = timer.stop();
  controller.abort(new Error('canceled'));
  await stopped;
  expect(logger.messages).not.toContain('the index could not be read again');
  expect(repository.contents.has(stored.contentId)).toBe(true);
});
