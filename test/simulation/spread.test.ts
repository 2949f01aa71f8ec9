import { describe, expect, it } from 'vitest';
import { spread } from './spread.ts';
import { Random } from './virtual-time.ts';

/** Minutes that a volume takes. */
const KINDS = {
  'of all sizes alike': (random: Random) => random.between(0.5, 8),
  'many small and some very large': (random: Random) => {
    const radius = Math.sqrt(-2 * Math.log(1 - random.between(0, 1)));
    return 2 * Math.exp(radius * Math.cos(2 * Math.PI * random.between(0, 1)));
  },
};
const SEEDS = [1, 2, 3, 4, 5];

describe('100 volumes on 5 nodes end soon after the time that they take at least', () => {
  it.each(Object.entries(KINDS))('%s', { timeout: 300_000 }, async (_, minutesOf) => {
    const ratios: number[] = [];
    for (const seed of SEEDS) {
      const random = new Random(1000 + seed);
      ratios.push(
        await spread(
          seed,
          Array.from({ length: 100 }, () => minutesOf(random)),
        ),
      );
    }
    const median = ratios.toSorted((a, b) => a - b)[SEEDS.length >> 1] ?? Infinity;
    expect(median, ratios.join(', ')).toBeLessThan(1.2);
  });
});
