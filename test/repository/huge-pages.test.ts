import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { hasHugePages, hugeBytes } from '../support/huge-pages.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('huge-pages');
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

it('the memory of a data path has huge pages, where the kernel has them', async () => {
  const repo = join(work, 'repo');
  await createTest(repo);
  const before = hugeBytes();
  await using opened = await openTest(repo);
  const arenaBytes = opened.dataPath?.arena.bytes.length ?? 0;
  expect(arenaBytes).toBeGreaterThan(64 << 20);
  expect(hugeBytes() - before).toBe(hasHugePages() ? arenaBytes : 0);
});
