import { describe, expect, it } from 'vitest';
import { simulateBackup } from './backups/simulation.ts';

const IS_SOAK = process.env.SOAK === '1';
const SEEDS = IS_SOAK ? 3000 : 60;
const BATCH = 10;
/**
 * With many seeds, other processes may share the machine, and a run takes many times as long. The
 * limits only stop runs that hang.
 */
const IS_LONG = IS_SOAK || process.env.SEEDS !== undefined;
const BATCH_LIMIT_MS = BATCH * (IS_LONG ? 300_000 : 30_000);
const EACH_CALL_LIMIT_MS = IS_SOAK ? 4 * 3_600_000 : 600_000;
const FIRST = Number(process.env.SEED ?? 1);
const COUNT = Number(process.env.SEEDS ?? SEEDS);
/** The requests to the bucket are the same for all seeds. Each run takes a second. */
const ONCE_COUNT = IS_SOAK || process.env.SEEDS !== undefined ? COUNT : 3;
/** Minimum counts for sixty seeds: seeds that exercise nothing prove nothing. */
const SEEN_MIN = {
  'kills while InProgress': 1000,
  'kills after the run': 10,
  'API server away': 100,
  'bucket away': 150,
  'servers frozen': 100,
  'servers cut off': 50,
  'clocks of servers': 100,
  'clock of the API server': 50,
};
/** For these seeds, one run for each call kills the server at that call. */
const EACH_CALL_OF = IS_SOAK ? [1, 3, 5, 8] : [3];
/** Every call would take a minute. */
const EACH = IS_SOAK ? 1 : 11;

/**
 * To repeat a seed: `SEED=17 SEEDS=1 npx vitest run test/simulation/backups.test.ts`. To see each
 * step: `node test/simulation/backups/tell.ts 17`.
 */
describe('a backup by servers that are killed, cut off and stand still, by seed', () => {
  const seen = new Map<string, number>();
  const batches = Array.from({ length: Math.ceil(COUNT / BATCH) }, (_, i) => FIRST + i * BATCH);
  it.each(batches)(
    'is what it is without any of that: from seed %i',
    { timeout: BATCH_LIMIT_MS },
    async (first) => {
      for (let seed = first; seed < Math.min(first + BATCH, FIRST + COUNT); seed++) {
        const { problems, counts } = await simulateBackup(seed);
        for (const [what, times] of counts) seen.set(what, (seen.get(what) ?? 0) + times);
        expect({ seed, problems }).toEqual({ seed, problems: [] });
      }
    },
  );

  it.each(batches)(
    'leaves nothing when its Backup is deleted: from seed %i',
    { timeout: BATCH_LIMIT_MS },
    async (first) => {
      for (let seed = first; seed < Math.min(first + BATCH, FIRST + COUNT); seed++) {
        const { problems, counts } = await simulateBackup(seed, { isDeleted: true });
        for (const [what, times] of counts) {
          if (/delet/.test(what)) seen.set(what, (seen.get(what) ?? 0) + times);
        }
        expect({ seed, problems }).toEqual({ seed, problems: [] });
      }
    },
  );

  it.each(Array.from({ length: ONCE_COUNT }, (_, i) => FIRST + i))(
    'puts no key twice in a location that is written once: seed %i',
    { timeout: BATCH_LIMIT_MS },
    async (seed) => {
      for (const isDeleted of [false, true]) {
        const { problems } = await simulateBackup(seed, { isDeleted, isWriteOnce: true });
        expect({ isDeleted, problems }).toEqual({ isDeleted, problems: [] });
      }
    },
  );

  it.runIf(COUNT >= SEEDS)('all that it is about happened often', () => {
    for (const [what, min] of Object.entries(SEEN_MIN)) {
      expect(seen.get(what) ?? 0, what).toBeGreaterThanOrEqual((min * COUNT) / 60);
    }
  });

  it.each(EACH_CALL_OF)(
    'and so it is when a server is killed at any call: seed %i',
    { timeout: EACH_CALL_LIMIT_MS },
    async (seed) => {
      const { turns, problems } = await simulateBackup(seed, { isCalm: true });
      expect(problems).toEqual([]);
      expect(turns).toBeGreaterThan(100);
      for (let at = 1; at <= turns; at += EACH) {
        const course = await simulateBackup(seed, { isCalm: true, killsAt: [at] });
        expect({ at, problems: course.problems }).toEqual({ at, problems: [] });
        expect(course.counts.get('kills while InProgress')).toBe(1);
      }
    },
  );
});
