import { expect, it } from 'vitest';
import { backoffMs, CodedError, isCode, withRetry } from '../../src/base/index.ts';

/** A service that asks for a pause each time. */
async function tries(retryAfterMs: number, tryingMsMax?: number): Promise<[number, unknown]> {
  let count = 0;
  const told = { retry: 'backoff', facts: { retryAfterMs } } as const;
  const error: unknown = await withRetry(
    () => {
      count++;
      return Promise.reject(new CodedError('STORAGE_THROTTLED', 'slow down', told));
    },
    {
      budgetOf: () => ({ attemptsMax: 16, delayMsMax: 1 }),
      firstDelayMs: 1,
      ...(tryingMsMax !== undefined && { tryingMsMax }),
    },
  ).catch((caught: unknown) => caught);
  return [count, error];
}

it('pauses that a service asks for end in time, and the error says how often it was tried', async () => {
  const [count, error] = await tries(500, 1800);
  expect(count).toBeGreaterThan(1);
  // More pauses would not fit into the time.
  expect(count).toBeLessThan(5);
  expect(error).toMatchObject({ code: 'STORAGE_THROTTLED', retry: 'backoff' });
  expect((error as Error).message).toContain(`tried ${count} times`);
});

it('a pause that would end too late is not begun', async () => {
  const [count, error] = await tries(300_000, 60_000);
  expect(count).toBe(1);
  expect(error).toMatchObject({ code: 'STORAGE_THROTTLED' });
});

it('short pauses are repeated as often as there are tries', async () => {
  expect((await tries(2))[0]).toBe(16);
});

it('an error that does not pass is thrown at once, as it is', async () => {
  const errors = ['STORAGE_THROTTLED', 'STORAGE_DENIED'].map(
    (code) => new CodedError(code, 'no', { retry: 'backoff' }),
  );
  let count = 0;
  const task = () => Promise.reject(errors[count++] ?? new Error('asked too often'));
  const error: unknown = await withRetry(task, {
    passes: (each) => isCode(each, 'STORAGE_THROTTLED'),
    budgetOf: () => ({ attemptsMax: 5, delayMsMax: 1 }),
    firstDelayMs: 1,
  }).catch((caught: unknown) => caught);
  expect(error).toBe(errors[1]);
});

it('delays double up to a bound, and the jitter only shortens them', () => {
  const limits = { firstMs: 100, maxMs: 1000 };
  expect([1, 2, 3, 4, 5, 5000].map((failures) => backoffMs(failures, limits))).toEqual([
    ...[100, 200, 400, 800, 1000, 1000],
  ]);
  const jittered = (random: number) =>
    backoffMs(2, { ...limits, jitter: 0.5, random: () => random });
  expect([0, 0.5, 1].map(jittered)).toEqual([100, 150, 200]);
});
