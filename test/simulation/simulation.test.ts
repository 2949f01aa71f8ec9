import { describe, expect, it } from 'vitest';
import { simulate } from './simulation.ts';

const SEEDS = process.env.SOAK === '1' ? 10_000 : 1000;
const BATCH = 50;
const FIRST = Number(process.env.SEED ?? 0);

/** One seed again: `SEED=17 SEEDS=1 npx vitest run test/simulation`. */
describe('agents through crashes, lost answers and late watches, by seed', () => {
  const count = Number(process.env.SEEDS ?? SEEDS);
  const batches = Array.from({ length: Math.ceil(count / BATCH) }, (_, i) => FIRST + i * BATCH);
  it.each(batches)('one owner, one end, no leak, no lost data: from seed %i', async (first) => {
    for (let seed = first; seed < Math.min(first + BATCH, FIRST + count); seed++) {
      const { problems } = await simulate(seed);
      expect({ seed, problems }).toEqual({ seed, problems: [] });
    }
  });
});
