import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { faulty } from '../../src/blob/index.ts';
import { type Repository, runMaintenance } from '../../src/repository/index.ts';
import { forgetSnapshots, listSnapshots, planGarbageCollection } from '../../src/snapshot/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('forget');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const { signal } = new AbortController();

async function packBytes({ storage }: Repository): Promise<number> {
  let sum = 0;
  for await (const { lengthBytes } of storage.listBlobs('p')) sum += lengthBytes;
  return sum;
}

it('forgets snapshots in batches; full maintenance frees their space once its safety times are over', async () => {
  const repo = join(work, 'repo');
  const tree = join(work, 'tree');
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  await using repository = await openTest(repo, { clock, wrap: atClock(repo, clock) });
  fs.mkdirSync(tree);
  const ids: string[] = [];
  for (let i = 0; i < 5; i++) {
    fs.writeFileSync(join(tree, 'file'), noise(`forget-${i}`, 400_000));
    ids.push((await backUp(repository, tree)).id);
  }
  const before = await packBytes(repository);
  const result = await forgetSnapshots(repository, [...ids.slice(0, 4), 'f'.repeat(32)], {
    signal,
    batch: 2,
  });
  expect(result).toEqual({ forgotten: ids.slice(0, 4), missing: ['f'.repeat(32)] });
  expect(await packBytes(repository)).toBe(before);
  for (let day = 0; day < 4; day++) {
    clock.offsetNs += 25n * HOUR_NS;
    await runMaintenance(repository, {
      mode: 'full',
      safety: 'full',
      force: false,
      dryRun: false,
      signal,
      logger: silentLogger,
      collectGarbage: planGarbageCollection,
    });
  }
  expect((await listSnapshots(repository)).map(({ id }) => id)).toEqual(ids.slice(4));
  expect(await packBytes(repository)).toBeLessThan(before / 3);
});

it('forgets the rest when it is tried again after a failure', async () => {
  const repo = join(work, 'again');
  const tree = join(work, 'again-tree');
  await createTest(repo);
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'file'), 'data');
  const ids: string[] = [];
  {
    await using repository = await openTest(repo);
    for (let i = 0; i < 4; i++) ids.push((await backUp(repository, tree)).id);
  }
  {
    const puts = new Set<string>();
    await using repository = await openTest(repo, {
      wrap: (storage) =>
        faulty(storage, ({ operation, id }) => {
          if (operation !== 'put' || !id.startsWith('q')) return;
          if (puts.add(id).size > 1) throw new Error('disk full');
        }),
    });
    await expect(forgetSnapshots(repository, ids, { signal, batch: 2 })).rejects.toThrow(
      'disk full',
    );
  }
  await using repository = await openTest(repo);
  expect(await listSnapshots(repository)).toHaveLength(2);
  const { forgotten, missing } = await forgetSnapshots(repository, ids, { signal });
  expect([forgotten.length, missing.length]).toEqual([2, 2]);
  expect(await listSnapshots(repository)).toEqual([]);
});

it('keeps the snapshots that its caller refuses, by their tags', async () => {
  const repo = join(work, 'refused');
  const tree = join(work, 'refused-tree');
  await createTest(repo);
  fs.mkdirSync(tree);
  const ids: string[] = [];
  {
    await using repository = await openTest(repo);
    for (const text of ['a', 'b']) {
      fs.writeFileSync(join(tree, 'file'), text);
      ids.push((await backUp(repository, tree, { tags: { of: text } })).id);
    }
  }
  await using repository = await openTest(repo);
  const result = await forgetSnapshots(repository, [...ids, 'f'.repeat(32)], {
    signal,
    mayForget: (_id, tags) => Promise.resolve(tags.of === 'b'),
  });
  expect(result).toEqual({ forgotten: ids.slice(1), missing: ['f'.repeat(32)] });
  expect((await listSnapshots(repository)).map(({ id }) => id)).toEqual(ids.slice(0, 1));
});
