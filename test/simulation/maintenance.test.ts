import { expect, it } from 'vitest';
import { simulateMaintenance } from './maintenance.ts';

const SEED = Number(process.env.SEED ?? 1);
const SEEDS = Number(process.env.SEEDS ?? 10);

it.each(Array.from({ length: SEEDS }, (_, i) => SEED + i))(
  'two servers maintain each repository, one Job at a time, whatever happens to them (seed %i)',
  { timeout: 120_000 },
  async (seed) => {
    const { problems, worked } = await simulateMaintenance(seed);
    expect(problems).toEqual([]);
    expect(worked).toBeGreaterThan(10);
  },
);
