import * as fs from 'node:fs';
import { expect, it } from 'vitest';

const TEST = new URL('../', import.meta.url).pathname;
/**
 * Where a cluster of real peers begins to listen; each takes less than a hundred ports from there.
 */
const BASES = /(?:startRealApi|RealNode\.start)\((\d\d_\d00)|\bPORT(?:_BASE)? = (\d\d_\d00)/g;

it('no two files of tests, which run side by side, let real clusters listen at the same ports', () => {
  const files = fs.globSync('**/*.ts', { cwd: TEST });
  const users = Map.groupBy(
    files.flatMap((file) => {
      const text = fs.readFileSync(TEST + file, 'utf8');
      const found = [...text.matchAll(BASES)].map(([, first, second]) => first ?? second ?? '');
      return [...new Set(found)].map((port) => ({ port, file }));
    }),
    ({ port }) => port,
  );
  expect(users.size).toBeGreaterThan(20);
  const shared = [...users.values()].filter((all) => all.length > 1);
  expect(shared.flat()).toEqual([]);
});
