import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeEach, expect, it, vi } from 'vitest';
import { HOUR_NS, OffsetClock, systemClock } from '../../src/base/index.ts';
import { type BlobStorage, faulty, listAll } from '../../src/blob/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { listSnapshots, putPolicy } from '../../src/snapshot/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, recordingLogger } from '../support/repositories.ts';

const work = tempDirectory('apply-retention');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const YEAR_NS = 365n * 24n * HOUR_NS;
const TREE = join(work, 'tree');
const NOTHING_ELSE = { keepHourly: 0, keepDaily: 0, keepWeekly: 0, keepMonthly: 0, keepAnnual: 0 };

let number = 0;
let repo: string;
beforeEach(async () => {
  repo = join(work, `repo-${++number}`);
  fs.mkdirSync(TREE, { recursive: true });
  fs.writeFileSync(join(TREE, 'file'), String(number));
  await createTest(repo);
  await using repository = await openTest(repo);
  const target = { host: '', userName: '', path: '' };
  await putPolicy(repository, target, { retention: { keepLatest: 2, ...NOTHING_ELSE } } as never);
  await repository.flush();
});

async function idsOf(repository: Repository): Promise<string[]> {
  return (await listSnapshots(repository)).map(({ id }) => id);
}

it.each([
  ['ahead', YEAR_NS],
  ['behind by ten minutes', -HOUR_NS / 6n],
])('a clock that is %s removes no snapshot, and both times are named', async (_name, offsetNs) => {
  const clock = new OffsetClock(systemClock);
  await using repository = await openTest(repo, { clock });
  const real = [(await backUp(repository, TREE)).id, (await backUp(repository, TREE)).id];
  clock.offsetNs = offsetNs;
  const logger = recordingLogger();
  for (let i = 0; i < 3; i++) {
    expect((await backUp(repository, TREE, { logger })).removed).toEqual([]);
  }
  expect(await idsOf(repository)).toEqual(expect.arrayContaining(real));
  if (offsetNs < 0n) return;
  const years = [0n, offsetNs].map((ns) =>
    new Date(Number((systemClock.nowNs() + ns) / 1_000_000n)).toISOString().slice(0, 10),
  );
  const warnings = logger.messages.filter((text) => text.includes('no snapshot was removed'));
  expect(warnings).toHaveLength(3);
  for (const text of warnings) expect(years.every((year) => text.includes(year))).toBe(true);
});

it('the time of the storage is asked for when something would be removed only', async () => {
  const asked: string[] = [];
  const wrap = (inner: BlobStorage): BlobStorage =>
    faulty(inner, ({ operation, id, when }) => {
      if (operation === 'metadata' && id.startsWith('s') && when === 'before') asked.push(id);
    });
  await using repository = await openTest(repo, { wrap });
  const first = await backUp(repository, TREE);
  await backUp(repository, TREE);
  expect(asked).toEqual([]);
  const { removed } = await backUp(repository, TREE);
  expect(removed.map(({ id }) => id)).toEqual([first.id]);
  expect(asked).toHaveLength(1);
});

it('a time that cannot be learned removes nothing, and the backup is kept', async () => {
  const wrap = (inner: BlobStorage): BlobStorage =>
    faulty(inner, ({ operation, id }) => {
      if (operation === 'metadata' && id.startsWith('s')) throw new Error('no such luck');
    });
  await using repository = await openTest(repo, { wrap });
  const logger = recordingLogger();
  for (let i = 0; i < 3; i++) await backUp(repository, TREE, { logger });
  expect(await idsOf(repository)).toHaveLength(3);
  expect(logger.messages).toContainEqual(expect.stringContaining('time is not known'));
});

it('a put that failed while the time was asked for costs no backup', async () => {
  let isLast = false;
  let hasFailed = false;
  const wrap = (inner: BlobStorage): BlobStorage =>
    faulty(inner, ({ operation, id, when }) => {
      if (!isLast || hasFailed || operation !== 'put' || !id.startsWith('s')) return;
      if (when !== 'before') return;
      hasFailed = true;
      throw new Error('no such luck');
    });
  await using repository = await openTest(repo, { wrap });
  const logger = recordingLogger();
  for (let i = 0; i < 3; i++) {
    isLast = i === 2;
    expect((await backUp(repository, TREE, { logger })).removed).toEqual([]);
  }
  expect(hasFailed).toBe(true);
  expect(await idsOf(repository)).toHaveLength(3);
  expect(logger.messages).toContainEqual(expect.stringContaining('time is not known'));
  // No marker is left behind.
  expect(await listAll(repository.storage, 's')).toEqual([]);
});

it('a backup that is done counts also where the older ones cannot be looked through', async () => {
  await using repository = await openTest(repo);
  const logger = recordingLogger();
  const find = vi.spyOn(repository.manifests, 'find');
  const { id, removed } = await backUp(repository, TREE, {
    logger,
    accept: () => {
      find.mockRejectedValue(new Error('the manifests are out of reach'));
    },
  });
  find.mockRestore();
  expect(removed).toEqual([]);
  expect(logger.messages).toContain('could not remove snapshots by policy');
  await using again = await openTest(repo);
  expect(await idsOf(again)).toContain(id);
});
