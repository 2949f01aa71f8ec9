import { describe, expect, it } from 'vitest';
import { simulate } from './simulation.ts';

const SEEDS = process.env.SOAK === '1' ? 10_000 : 1000;
const BATCH = 50;
const FIRST = Number(process.env.SEED ?? 0);
/** Seeds that exercise nothing prove nothing: what a thousand of them must have seen at least. */
const SEEN_MIN = {
  crashes: 2000,
  'nodes lost': 150,
  'nodes cut off': 400,
  'pods deleted by force': 50,
  'uploads killed': 150,
  'downloads killed': 100,
  'changes of the agent': 1000,
  restarts: 300,
  rebinds: 500,
  fences: 6,
};

/** One seed again: `SEED=17 SEEDS=1 npx vitest run test/simulation`. */
describe('agents through crashes, cut nodes, lost answers and late watches, by seed', () => {
  const count = Number(process.env.SEEDS ?? SEEDS);
  const batches = Array.from({ length: Math.ceil(count / BATCH) }, (_, i) => FIRST + i * BATCH);
  const seen = new Map<string, number>();
  it.each(batches)('one writer, one end, no leak, no lost data: from seed %i', async (first) => {
    for (let seed = first; seed < Math.min(first + BATCH, FIRST + count); seed++) {
      const { problems, counts } = await simulate(seed);
      for (const [what, times] of counts) seen.set(what, (seen.get(what) ?? 0) + times);
      expect({ seed, problems }).toEqual({ seed, problems: [] });
    }
  });

  it.runIf(count >= 1000)('all that they are about happened often', () => {
    for (const [what, min] of Object.entries(SEEN_MIN)) {
      expect(seen.get(what) ?? 0, what).toBeGreaterThanOrEqual((min * count) / 1000);
    }
  });
});

/** Longer than the prepare and the stall time-out of the simulation's agents. */
const FULL_MS = 1_200_000;

it('nothing fails because the API server took no writes for a while', async () => {
  for (let seed = 0; seed < 60; seed++) {
    const { problems } = await simulate(seed, undefined, { fullMs: FULL_MS });
    expect({ seed, problems }).toEqual({ seed, problems: [] });
  }
});
