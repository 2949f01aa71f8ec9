import { describe, expect, it } from 'vitest';
import { simulate } from './engine/simulation.ts';

const SEEDS = process.env.SOAK === '1' ? 10_000 : 120;
const BATCH = 10;
const FIRST = Number(process.env.SEED ?? 0);
const COUNT = Number(process.env.SEEDS ?? SEEDS);

/** With this many seeds, each event below must happen at least once. */
const SEEDS_FOR_ALL = 100;
const MUST_HAPPEN = [
  'complete snapshots',
  'incomplete snapshots',
  'busy upload: killed',
  'slow upload: done',
  'full maintenance: done',
  'full maintenance: killed',
  'flushes',
  'flushes while somebody waited for a buffer',
  'deletedContentCount',
  'rewrittenContentCount',
  'deleted p',
  'deleted q',
  'deleted s',
  'deleted xn',
  'put xe',
  'put xw',
  'put xs',
  'epochs advanced',
  'task full-drop-deleted-content',
  'collected to the last',
  'refused requests',
  'lost answers',
  'late effects',
  'storage away',
  'puts while full',
  'clocks forwards',
  'clocks backwards',
  'sleeping processes',
];

/**
 * To repeat a seed: `SEED=17 SEEDS=1 npx vitest run test/simulation/engine.test.ts`. To see each
 * step: `node test/simulation/engine/tell.ts 17`.
 */
describe('the engine through kills, lost answers, clock steps and full disks, by seed', () => {
  const totals = new Map<string, number>();
  const batches = Array.from({ length: Math.ceil(COUNT / BATCH) }, (_, i) => FIRST + i * BATCH);
  it.each(batches)('nothing is lost, nothing hangs: from seed %i', async (first) => {
    for (let seed = first; seed < Math.min(first + BATCH, FIRST + COUNT); seed++) {
      const { problems, counts } = await simulate(seed);
      expect({ seed, problems }).toEqual({ seed, problems: [] });
      for (const [event, times] of counts) totals.set(event, (totals.get(event) ?? 0) + times);
    }
  });

  it('every kind of event happened', () => {
    const missing = MUST_HAPPEN.filter((event) => !totals.has(event));
    expect(COUNT < SEEDS_FOR_ALL ? [] : missing).toEqual([]);
  });
});
