import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { faulty } from '../../src/blob/index.ts';
import { runMaintenance } from '../../src/repository/index.ts';
import {
  listSnapshots,
  planGarbageCollection as collectGarbage,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import { findLostObjects } from '../../src/uploader/upload/tree-check.ts';
import { atClock } from '../support/clocked-storage.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('confirm-beside-maintenance');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const { signal } = new AbortController();
const clock = new OffsetClock(systemClock);

/** A day passes, and full maintenance runs. */
async function nextDay(): Promise<void> {
  clock.offsetNs += 25n * HOUR_NS;
  await using owner = await openTest(at('repo'), { clock, wrap: atClock(at('repo'), clock) });
  await runMaintenance(owner, {
    mode: 'full',
    safety: 'full',
    force: false,
    dryRun: false,
    signal,
    logger: silentLogger,
    collectGarbage,
  });
}

it('what maintenance has moved while the machine slept is not marked deleted at the end of a long upload', async () => {
  await createTest(at('repo'));
  const aged = atClock(at('repo'), clock);
  await using writer = await openTest(at('repo'), { clock, wrap: aged });
  fs.mkdirSync(at('tree'));
  // Two short packs of each kind, which maintenance rewrites on one day and deletes on the next.
  fs.writeFileSync(at('tree/a'), noise('a', 300_000));
  await backUp(writer, at('tree'));
  fs.writeFileSync(at('tree/b'), noise('b', 300_000));
  const { rootEntry } = await backUp(writer, at('tree'));
  let asleep: Promise<void> | undefined;
  const sleeps = async (): Promise<void> => {
    for (let day = 0; day < 2; day++) await nextDay();
  };
  await using checker = await openTest(at('repo'), {
    clock,
    wrap: (storage) =>
      aged(
        faulty(storage, async ({ operation, id }) => {
          // Packs are listed once every content has been found in the index.
          if (operation === 'list' && id === 'p') await (asleep ??= sleeps());
        }),
      ),
  });
  const lost = await findLostObjects(checker, rootEntry, { signal, onChecked: () => undefined });
  expect(asleep).toBeDefined();
  expect(lost.count).toBe(0);
  await checker.contents.flush();
  // A collection restores contents with a deletion mark, at the place that the mark names.
  await nextDay();
  await using reader = await openTest(at('repo'), { clock });
  const roots = (await listSnapshots(reader)).flatMap((snapshot) => snapshot.rootEntry ?? []);
  expect(roots).toHaveLength(2);
  expect((await verifyTrees(reader, roots, { readAll: true, signal })).problems).toEqual([]);
});
