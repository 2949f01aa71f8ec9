import { expect, it } from 'vitest';
import { simulateRequests } from './server-requests.ts';

const SEED = Number(process.env.SEED ?? 1);
const SEEDS = Number(process.env.SEEDS ?? 10);
const MINUTE_MS = 60_000;

it.each(Array.from({ length: SEEDS }, (_, i) => SEED + i))(
  'two servers validate locations and answer requests, whatever happens to them and to the buckets (seed %i)',
  { timeout: 120_000 },
  async (seed) => {
    const { problems, answered, validations } = await simulateRequests(seed, {
      locations: 6,
      chaosMs: 60 * MINUTE_MS,
      calmMs: 35 * MINUTE_MS,
      staleMsMax: 70_000,
    });
    expect(problems).toEqual([]);
    expect(answered).toBeGreaterThan(50);
    expect(validations).toBeGreaterThan(100);
  },
);

it(
  'of a thousand locations none is delayed by a third of them that does not answer',
  { timeout: 120_000 },
  async () => {
    const { problems, checksAtOnceMax } = await simulateRequests(3, {
      locations: 1000,
      chaosMs: 0,
      calmMs: 12 * MINUTE_MS,
      bucket: (i) => (i % 3 === 0 ? 'hangs' : i % 10 === 1 ? 'away' : 'well'),
      // Each minute, and some seconds in the queue.
      staleMsMax: 80_000,
    });
    expect(problems).toEqual([]);
    // Each holds a connection.
    expect(checksAtOnceMax).toBeLessThan(600);
  },
);
