import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock, toDate } from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  loadSchedule,
  type MaintenanceOptions,
  type MaintenanceReport,
  type Repository,
  runMaintenance,
} from '../../src/repository/index.ts';
import { ROW_COUNT } from '../../src/repository/maintenance/delete-packs.ts';
import { putSchedule, type TaskRun } from '../../src/repository/maintenance/schedule.ts';
import {
  listSnapshots,
  planGarbageCollection as collectGarbage,
} from '../../src/snapshot/index.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { atClock } from '../support/clocked-storage.ts';
import { noise } from '../support/noise.ts';

const work = tempDirectory('maintenance');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const DAY_NS = 24n * HOUR_NS;

function maintain(
  repository: Repository,
  options: Partial<MaintenanceOptions> = {},
): Promise<MaintenanceReport> {
  return runMaintenance(repository, {
    mode: 'full',
    safety: 'none',
    force: false,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage,
    ...options,
  });
}

const statsOf = (report: MaintenanceReport, task: string): Record<string, unknown> => ({
  ...report.tasks.find((each) => each.task === task)?.stats,
});

async function blobsOf(storage: BlobStorage, prefix: string): Promise<string[]> {
  return (await Array.fromAsync(storage.listBlobs(prefix))).map(({ id }) => id);
}

function writeTree(name: string, seed: string, files = 3): string {
  const tree = at(name);
  fs.mkdirSync(tree, { recursive: true });
  for (let i = 0; i < files; i++)
    fs.writeFileSync(join(tree, `file-${i}`), noise(`${seed}-${i}`, 400_000));
  return tree;
}

/**
 * Two snapshots of different trees; the first is deleted, so that its contents belong to nobody.
 */
async function withGarbage(name: string, repository: Repository): Promise<string> {
  const first = await backUp(repository, writeTree(`${name}-old`, `${name}-old`));
  const tree = writeTree(`${name}-new`, `${name}-new`);
  await backUp(repository, tree);
  repository.manifests.delete(first.id);
  await repository.flush();
  return tree;
}

describe.each([3, 1] as const)('full maintenance without safety, format %s', (version) => {
  const repo = at(`repo-${version}`);

  it('drops what no snapshot reaches and deletes its packs; the rest stays', async () => {
    await createTest(repo, { version });
    const clock = new OffsetClock(systemClock);
    await using repository = await openTest(repo, { clock, wrap: atClock(repo, clock) });
    const tree = await withGarbage(`v${version}`, repository);
    clock.offsetNs += HOUR_NS;
    const packs = await blobsOf(repository.storage, 'p');
    const plan = await maintain(repository, { dryRun: true });
    expect(statsOf(plan, 'snapshot-gc')).toMatchObject({ deletedContentCount: 4 });
    expect(await blobsOf(repository.storage, 'p')).toEqual(packs);
    const report = await maintain(repository);
    expect(statsOf(report, 'snapshot-gc')).toMatchObject({ deletedContentCount: 4 });
    if (version === 3) {
      expect([...repository.contents.entries()].filter(({ deleted }) => deleted)).toEqual([]);
    }
    const deleted = statsOf(report, 'full-delete-blobs');
    expect(deleted.deletedPackCount).toBeGreaterThan(0);
    const bytes = fs.readdirSync(repo, { recursive: true }).reduce((sum, path) => {
      const stat = fs.statSync(join(repo, String(path)));
      const isReserve = String(path).startsWith('reserve');
      return sum + (stat.isFile() && !isReserve ? stat.size : 0);
    }, 0);
    // Format 1 drops only contents that were marked before this second, so the next run drops
    // these.
    if (version === 3) expect(bytes).toBeLessThan(1_300_000);
    const [snapshot] = await listSnapshots(repository);
    if (!snapshot?.rootEntry) throw new Error('the snapshot is gone');
    await restore(repository, snapshot.rootEntry, at(`out-${version}`));
    assertSameTree(tree, at(`out-${version}`));
    if (hasKopia) new Kopia(PASSWORD).connect(repo).verifyAll();
  });

  it.skipIf(!hasKopia)('and the real Kopia agree on what is garbage, in turn', async () => {
    const kopia = new Kopia(PASSWORD).connect(repo);
    const tree = writeTree(`turn-${version}`, `turn-${version}`);
    const { id } = kopia.json<{ id: string }>('snapshot', 'create', tree);
    kopia.run('snapshot', 'delete', id, '--delete');
    await using repository = await openTest(repo);
    const report = await maintain(repository, { force: true });
    expect(statsOf(report, 'snapshot-gc').deletedContentCount).toBe(4);
    kopia.run('maintenance', 'set', '--owner=me');
    kopia.run('maintenance', 'run', '--full', '--safety=none');
    kopia.verifyAll();
    await repository.contents.refresh();
    for (const { rootEntry } of await listSnapshots(repository)) {
      if (rootEntry) await restore(repository, rootEntry, at(`turn-out-${version}`));
    }
  });
});

it('with full safety a fresh deletion is only marked; two collections a day apart free the space', async () => {
  const repo = at('repo-safe');
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  await using repository = await openTest(repo, { clock, wrap: atClock(repo, clock) });
  await withGarbage('safe', repository);
  const first = await maintain(repository, { safety: 'full' });
  expect(statsOf(first, 'snapshot-gc')).toMatchObject({
    deletedContentCount: 0,
    unreferencedRecentContentCount: 4,
  });
  clock.offsetNs += 2n * DAY_NS;
  const second = await maintain(repository, { safety: 'full' });
  expect(statsOf(second, 'snapshot-gc').deletedContentCount).toBe(4);
  expect(statsOf(second, 'full-delete-blobs').deletedPackCount ?? 0).toBe(0);
  let freed = 0;
  for (let day = 0; day < 4 && freed === 0; day++) {
    clock.offsetNs += 2n * DAY_NS;
    const report = await maintain(repository, { safety: 'full' });
    freed = Number(statsOf(report, 'full-delete-blobs').deletedPackCount ?? 0);
  }
  expect(freed).toBeGreaterThan(0);
  const [snapshot] = await listSnapshots(repository);
  if (!snapshot?.rootEntry) throw new Error('the snapshot is gone');
  await restore(repository, snapshot.rootEntry, at('safe-out'));
  expect((await loadSchedule(repository)).runs.get('snapshot-gc')?.length).toBeGreaterThan(2);
});

it('epochs advance, are compacted singly and in ranges, and superseded indexes go', async () => {
  const repo = at('repo-epochs');
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  await using repository = await openTest(repo, { clock, wrap: atClock(repo, clock) });
  const tree = at('epoch-tree');
  fs.mkdirSync(tree);
  for (let day = 0; day < 12; day++) {
    for (let i = 0; i < 22; i++) {
      clock.offsetNs += 2n * HOUR_NS;
      fs.writeFileSync(join(tree, `file-${i}`), `${day}-${i}`);
      await backUp(repository, tree);
    }
    await maintain(repository, { mode: 'full', safety: 'full' });
  }
  const { storage } = repository;
  expect((await blobsOf(storage, 'xs')).length).toBeGreaterThan(3);
  expect((await blobsOf(storage, 'xr')).length).toBeGreaterThan(0);
  expect((await blobsOf(storage, 'xe')).length).toBeLessThan(4);
  expect((await blobsOf(storage, 'xn')).length).toBeLessThan(150);
  await repository.contents.refresh();
  const newest = (await listSnapshots(repository)).at(-1);
  if (!newest?.rootEntry) throw new Error('no snapshot');
  await restore(repository, newest.rootEntry, at('epoch-out'));
  assertSameTree(tree, at('epoch-out'));
  if (hasKopia) new Kopia(PASSWORD).connect(repo).verifyAll();
});

it('a writer that takes over what a collection has just marked deleted loses nothing', async () => {
  const repo = at('repo-concurrent');
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  const options = { clock, wrap: atClock(repo, clock) };
  await using owner = await openTest(repo, options);
  await withGarbage('concurrent', owner);
  clock.offsetNs += 30n * HOUR_NS;
  // The writer loads the index now, so it does not see the owner's next marks.
  await using writer = await openTest(repo, options);
  const marked = await maintain(owner, { safety: 'full' });
  expect(statsOf(marked, 'snapshot-gc').deletedContentCount).toBe(4);
  const old = at('concurrent-old');
  const backup = await backUp(writer, old);
  expect(backup.counters.contentsNew).toBe(0);
  let recovered = 0;
  for (let run = 0; run < 6; run++) {
    clock.offsetNs += 13n * HOUR_NS;
    owner.manifests.invalidate();
    const report = await maintain(owner, { safety: 'full' });
    recovered += Number(statsOf(report, 'snapshot-gc').recoveredContentCount);
  }
  expect(recovered).toBe(4);
  await using reader = await openTest(repo, options);
  await restore(reader, backup.rootEntry, at('concurrent-out'));
  assertSameTree(old, at('concurrent-out'));
});

it('only the owner maintains, unless forced; nothing that is not due is done', async () => {
  const repo = at('repo-owner');
  await createTest(repo);
  await using repository = await openTest(repo);
  expect((await maintain(repository, { mode: 'auto' })).mode).toBe('full');
  expect((await maintain(repository, { mode: 'auto' })).mode).toBe('none');
  await using stranger = await openTest(repo, { client: { username: 'some', hostname: 'body' } });
  await expect(maintain(stranger)).rejects.toMatchObject({
    code: 'NOT_MAINTENANCE_OWNER',
    message: expect.stringContaining('--client tester@testhost') as string,
  });
  expect((await maintain(stranger, { force: true })).mode).toBe('full');
});

it('clocks that differ by more than five minutes stop it', async () => {
  const repo = at('repo-skew');
  await createTest(repo);
  const clock = new OffsetClock(systemClock, HOUR_NS);
  await using repository = await openTest(repo, { clock });
  await expect(maintain(repository)).rejects.toMatchObject({ code: 'CLOCK_SKEW' });
  expect(toDate(clock.nowNs()).getTime()).toBeGreaterThan(Date.now());
});

it('a run that is refused for its clock, or cannot learn the time, leaves the booking as it was', async () => {
  const repo = at('repo-booking');
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  let isFailing = false;
  const wrap = (inner: BlobStorage): BlobStorage =>
    faulty(inner, ({ operation }) => {
      if (isFailing && operation === 'metadata') throw new Error('no answer');
    });
  await using repository = await openTest(repo, { clock, wrap });
  const booking = async (): Promise<bigint[]> => {
    const { nextFullNs, nextQuickNs } = await loadSchedule(repository);
    return [nextFullNs, nextQuickNs];
  };
  const nothing = await booking();
  clock.offsetNs = HOUR_NS;
  await expect(maintain(repository)).rejects.toMatchObject({ code: 'CLOCK_SKEW' });
  expect(await booking()).toEqual(nothing);
  clock.offsetNs = 0n;
  expect((await maintain(repository, { mode: 'auto' })).mode).toBe('full');
  const booked = await booking();
  expect(booked).not.toEqual(nothing);
  for (const mode of ['full', 'quick'] as const) {
    clock.offsetNs = HOUR_NS;
    await expect(maintain(repository, { mode })).rejects.toMatchObject({ code: 'CLOCK_SKEW' });
    clock.offsetNs = 0n;
    isFailing = true;
    await expect(maintain(repository, { mode })).rejects.toThrow('no answer');
    isFailing = false;
    expect(await booking()).toEqual(booked);
  }
});

it.skipIf(!hasKopia)('a pause of full maintenance by the real Kopia is kept', async () => {
  const repo = at('repo-paused');
  await createTest(repo);
  await using repository = await openTest(repo);
  const kopia = new Kopia(PASSWORD).connect(repo);
  const auto = async (): Promise<string> => (await maintain(repository, { mode: 'auto' })).mode;
  expect(await auto()).toBe('full');
  kopia.run('maintenance', 'set', '--pause-full=720h');
  const { nextFullNs } = await loadSchedule(repository);
  expect(await auto()).toBe('none');
  kopia.run('maintenance', 'set', '--pause-full=720h', '--pause-quick=720h');
  expect(await auto()).toBe('quick');
  expect((await loadSchedule(repository)).nextFullNs).toBeGreaterThanOrEqual(nextFullNs);
  kopia.run('maintenance', 'set', '--pause-full=0s');
  expect(await auto()).toBe('full');
});

describe('what was written by a clock that was ahead for a while holds nothing up:', () => {
  const YEAR_NS = 365n * DAY_NS;

  it('a full run that was followed by quick ones', async () => {
    const repo = at('repo-ahead-followed');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    await using repository = await openTest(repo, { clock, wrap: atClock(repo, clock) });
    const auto = async (): Promise<string> => (await maintain(repository, { mode: 'auto' })).mode;
    clock.offsetNs = YEAR_NS;
    expect(await auto()).toBe('full');
    for (let hour = 0; hour < 3; hour++) {
      clock.offsetNs += HOUR_NS;
      expect(await auto()).toBe('quick');
    }
    clock.offsetNs = HOUR_NS;
    expect(await auto()).toBe('full');
  });

  it('a booking', async () => {
    const repo = at('repo-ahead-booking');
    await createTest(repo);
    await using repository = await openTest(repo);
    const nowNs = repository.clock.nowNs();
    const far = nowNs + YEAR_NS;
    // As a full run books both.
    const farFull = far + DAY_NS - HOUR_NS;
    await putSchedule(repository, { nextFullNs: farFull, nextQuickNs: far, runs: new Map() });
    expect((await maintain(repository, { mode: 'auto' })).mode).toBe('full');
    const { nextFullNs } = await loadSchedule(repository);
    expect(nextFullNs).toBeLessThan(nowNs + 2n * DAY_NS);
    await putSchedule(repository, { nextFullNs, nextQuickNs: far, runs: new Map() });
    expect((await maintain(repository, { mode: 'auto' })).mode).toBe('quick');
    expect((await maintain(repository, { mode: 'auto' })).mode).toBe('none');
  });

  it('runs', async () => {
    const repo = at('repo-ahead-runs');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    await using repository = await openTest(repo, { clock, wrap: atClock(repo, clock) });
    await withGarbage('ahead', repository);
    const run = (hours: bigint, extra?: unknown): TaskRun => {
      const startNs = clock.nowNs() + YEAR_NS + hours * HOUR_NS;
      return { startNs, endNs: startNs + 1n, success: true, extra };
    };
    const counted = [{ kind: 'deleteUnreferencedPacksStats', data: { [ROW_COUNT]: 1_000_000 } }];
    const runs = new Map([
      ['snapshot-gc', [run(24n), run(0n)]],
      ['full-rewrite-contents', [run(1n)]],
      ['full-delete-blobs', [run(2n, counted)]],
    ]);
    await putSchedule(repository, { nextFullNs: 0n, nextQuickNs: 0n, runs });
    clock.offsetNs += 2n * DAY_NS;
    const skippedBy = ({ tasks }: MaintenanceReport): Record<string, string | undefined> =>
      Object.fromEntries(tasks.map(({ task, skipped }) => [task, skipped]));
    const first = skippedBy(await maintain(repository, { safety: 'full' }));
    expect(first['full-rewrite-contents']).toBeUndefined();
    // The collections of the future are no two.
    expect(first['full-drop-deleted-content']).toMatch(/^two garbage collections/);
    clock.offsetNs += DAY_NS;
    const second = await maintain(repository, { safety: 'full' });
    expect(skippedBy(second)['full-delete-blobs']).toBeUndefined();
    expect(statsOf(second, 'full-delete-blobs').deletedPackCount).toBeGreaterThan(0);
    expect(skippedBy(second)['full-drop-deleted-content']).toBeUndefined();
  });
});

it('a snapshot that cannot be walked stops the collection before it changes anything', async () => {
  const repo = at('repo-broken');
  await createTest(repo);
  await using repository = await openTest(repo);
  await withGarbage('broken', repository);
  const before = [...repository.contents.entries()].filter(({ deleted }) => deleted).length;
  for (const id of await blobsOf(repository.storage, 'q'))
    await repository.storage.deleteBlob(id as never);
  await using again = await openTest(repo);
  await expect(maintain(again)).rejects.toMatchObject({ code: 'DAMAGED_BLOB' });
  await again.contents.refresh();
  expect([...again.contents.entries()].filter(({ deleted }) => deleted).length).toBe(before);
});
