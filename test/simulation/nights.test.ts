import { describe, expect, it } from 'vitest';
import { simulateNights } from './nights/simulation.ts';

const IS_SOAK = process.env.SOAK === '1';
const SEEDS = IS_SOAK ? 2000 : 30;
const BATCH = 10;
const BATCH_LIMIT_MS = BATCH * (IS_SOAK || process.env.SEEDS !== undefined ? 600_000 : 60_000);
const FIRST = Number(process.env.SEED ?? 1);
const COUNT = Number(process.env.SEEDS ?? SEEDS);
/** Minimum counts for thirty seeds: seeds that exercise nothing prove nothing. */
const SEEN_MIN = {
  nights: 200,
  'volumes restored': 150,
  'volumes in place': 3,
  'namespaces deleted': 25,
  'restores: whole': 20,
  'restores: whole in place': 5,
  'restores: one namespace': 10,
  'restores: one namespace in place': 5,
  'visits of another cluster': 30,
  'kills of servers': 100,
  'kills of agents': 20,
  'Restores that are deleted': 10,
  deletions: 10,
  'deletions that were refused': 5,
};
/** Seeds that once found a bug. */
const FOUND = [
  ['a restore took the data of the first night, and those that a tenant had named', 1],
  ['a restore changed the Lease and the password of the server', 3],
  ['a deletion forgot a snapshot of another backup, which a tenant had named', 8],
  ['a restore did a refused deletion again, and a good backup was gone', 14],
  ['downloads of earlier restores were done again, here and in another cluster', 25],
  ['a download waited for its claim until it failed, and the claim stayed empty', 433],
] as const;

/**
 * To repeat a seed: `SEED=17 SEEDS=1 npx vitest run test/simulation/nights.test.ts`. To see each
 * step: `node test/simulation/nights/tell.ts 17`.
 */
describe('a cluster that backs up all of itself each night and is restored now and then, by seed', () => {
  const seen = new Map<string, number>();
  const batches = Array.from({ length: Math.ceil(COUNT / BATCH) }, (_, i) => FIRST + i * BATCH);
  it.each(batches)(
    'each volume holds what it held that night, and nothing old is done again: from seed %i',
    { timeout: BATCH_LIMIT_MS },
    async (first) => {
      for (let seed = first; seed < Math.min(first + BATCH, FIRST + COUNT); seed++) {
        const { problems, counts } = await simulateNights(seed);
        for (const [what, times] of counts) seen.set(what, (seen.get(what) ?? 0) + times);
        expect({ seed, problems }).toEqual({ seed, problems: [] });
      }
    },
  );

  it.each(FOUND)(
    'what was found once is found no more: %s',
    async (_, seed) => {
      const { problems } = await simulateNights(seed);
      expect(problems).toEqual([]);
    },
    120_000,
  );

  it.runIf(COUNT >= SEEDS)('all that it is about happened often', () => {
    for (const [what, min] of Object.entries(SEEN_MIN)) {
      expect(seen.get(what) ?? 0, what).toBeGreaterThanOrEqual((min * COUNT) / 30);
    }
  });
});
