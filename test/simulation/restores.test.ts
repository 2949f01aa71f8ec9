import { describe, expect, it } from 'vitest';
import { EVENTS, type Settings, settingsOf, simulateRestore } from './restores/simulation.ts';

const IS_SOAK = process.env.SOAK === '1';
const SEEDS = IS_SOAK ? 3000 : 60;
const BATCH = 10;
/**
 * With many seeds, other processes may share the machine, and a run takes many times as long. The
 * limits only stop runs that hang.
 */
const IS_LONG = IS_SOAK || process.env.SEEDS !== undefined;
const BATCH_LIMIT_MS = BATCH * (IS_LONG ? 300_000 : 30_000);
/** A thousand turns and more. */
const EACH_TURN_LIMIT_MS = IS_SOAK ? 4 * 3_600_000 : 600_000;
const FIRST = Number(process.env.SEED ?? 1);
const COUNT = Number(process.env.SEEDS ?? SEEDS);
/** Minimum counts for sixty seeds: seeds that exercise nothing prove nothing. */
const SEEN_MIN = {
  'kills while New': 3,
  'kills while InProgress': 150,
  'kills while WaitingForPluginOperations': 5,
  'kills while Finalizing': 20,
  'API server away': 100,
  'bucket away': 150,
  'servers frozen': 100,
  'servers cut off': 50,
  'clocks of servers': 100,
  'clock of the API server': 50,
  downloads: 50,
  PodVolumeRestores: 20,
  hooks: 30,
  'objects that users change': 5,
  'objects that users delete': 5,
};
/** For these seeds, one run for each turn kills the server at that turn. */
const EACH_TURN_OF = IS_SOAK ? [1, 5, 10] : [5];
/** There are more than a thousand. */
const EACH = IS_SOAK ? 1 : 31;

/**
 * To repeat a seed: `SEED=17 SEEDS=1 npx vitest run test/simulation/restores.test.ts`. To see each
 * step: `node test/simulation/restores/tell.ts 17`.
 */
describe('a restore by servers that are killed, cut off and stand still, by seed', () => {
  const seen = new Map<string, number>();
  const batches = Array.from({ length: Math.ceil(COUNT / BATCH) }, (_, i) => FIRST + i * BATCH);
  it.each(batches)(
    'is what it is without any of that: from seed %i',
    { timeout: BATCH_LIMIT_MS },
    async (first) => {
      for (let seed = first; seed < Math.min(first + BATCH, FIRST + COUNT); seed++) {
        const { problems, counts } = await simulateRestore(seed, settingsOf(seed));
        for (const [what, times] of counts) seen.set(what, (seen.get(what) ?? 0) + times);
        expect({ seed, problems }).toEqual({ seed, problems: [] });
      }
    },
  );

  // The Backup is deleted. In 295 and 296 another location gets a Backup of its name.
  it.each([247, 295, 296])(
    'goes on from the stored files after its Backup is deleted: seed %i',
    { timeout: BATCH_LIMIT_MS },
    async (seed) => {
      const settings: Settings = { ...settingsOf(seed), event: 'backup gone' };
      const { problems, counts } = await simulateRestore(seed, settings);
      expect(problems).toEqual([]);
      expect([...counts.keys()]).toContain('backup gone while InProgress');
    },
  );

  it.runIf(COUNT >= SEEDS)('all that it is about happened often', () => {
    for (const [what, min] of Object.entries(SEEN_MIN)) {
      expect(seen.get(what) ?? 0, what).toBeGreaterThanOrEqual((min * COUNT) / 60);
    }
    for (const event of EVENTS) {
      const all = [...seen].filter(([what]) => what.startsWith(`${event} while`));
      const times = all.reduce((sum, [, each]) => sum + each, 0);
      expect(times, event).toBeGreaterThanOrEqual((3 * COUNT) / 60);
    }
  });

  it.each(EACH_TURN_OF)(
    'and so it is when a server is killed at any turn: seed %i',
    { timeout: EACH_TURN_LIMIT_MS },
    async (seed) => {
      const settings: Settings = { isCalm: true };
      const { turns, problems } = await simulateRestore(seed, settings);
      expect(problems).toEqual([]);
      expect(turns).toBeGreaterThan(100);
      for (let at = 1; at <= turns; at += EACH) {
        const course = await simulateRestore(seed, { ...settings, killsAt: [at] });
        expect({ at, problems: course.problems }).toEqual({ at, problems: [] });
        const kills = [...course.counts.keys()].filter((what) => what.startsWith('kills'));
        expect(kills).toHaveLength(1);
      }
    },
  );
});
