import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { runMaintenance } from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('clock-behind');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

it('what was collected and comes back is stored, also by a machine whose clock is a week behind', async () => {
  const repo = join(work, 'repo');
  const tree = join(work, 'tree');
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'file'), noise('clock-behind', 400_000));
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  const options = { clock, wrap: atClock(repo, clock) };
  {
    await using owner = await openTest(repo, options);
    const { id } = await backUp(owner, tree);
    owner.manifests.delete(id);
    await owner.flush();
    for (let run = 0; run < 4; run++) {
      clock.offsetNs += 30n * HOUR_NS;
      owner.manifests.invalidate();
      await runMaintenance(owner, {
        mode: 'full',
        safety: 'full',
        force: false,
        dryRun: false,
        signal: new AbortController().signal,
        logger: silentLogger,
        collectGarbage,
      });
    }
    // The deletions are still in the index, but hidden. Only then can they win over contents that
    // are stored again.
    expect(owner.contents.watermarkSeconds).toBeGreaterThan(0);
    expect(owner.contents.contentCount).toBeGreaterThan(
      Array.from(owner.contents.entries()).length,
    );
  }
  const behind = new OffsetClock(clock);
  behind.offsetNs = -7n * 24n * HOUR_NS;
  await using writer = await openTest(repo, { ...options, clock: behind });
  const backup = await backUp(writer, tree);
  expect(backup.counters.contentsNew).toBeGreaterThan(0);
  await using reader = await openTest(repo, options);
  await restore(reader, backup.rootEntry, join(work, 'out'));
  assertSameTree(tree, join(work, 'out'));
});
