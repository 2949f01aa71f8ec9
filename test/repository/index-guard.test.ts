import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { blobId, type BlobMetadata, listAll } from '../../src/blob/index.ts';
import {
  type MaintenanceOptions,
  type MaintenanceReport,
  type Repository,
  runMaintenance,
} from '../../src/repository/index.ts';
import { SAFETY } from '../../src/repository/maintenance/safety.ts';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { putIndex } from '../support/index-blobs.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { type Lie, LyingStorage } from '../support/lying-storage.ts';
import { collectGarbage, deleteUnreferencedPacks } from '../support/maintenance-tasks.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';

/** Deleting never rests on one listing. */
const work = tempDirectory('index-guard');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const DAY_NS = 24n * HOUR_NS;

interface Aged extends AsyncDisposable {
  readonly path: string;
  readonly repository: Repository;
  readonly storage: LyingStorage;
  readonly clock: OffsetClock;
  readonly trees: string[];
}

/**
 * A repository with some backups, each a day younger than the one before; all its packs may be
 * deleted by their age.
 */
async function openAged(name: string, version: 1 | 3 = 3, backups = 4): Promise<Aged> {
  const path = join(work, name);
  await createTest(path, { version });
  const clock = new OffsetClock(systemClock);
  let storage: LyingStorage | undefined;
  const repository = await openTest(path, {
    clock,
    wrap: (inner) => (storage = new LyingStorage(atClock(path, clock)(inner))),
  });
  const trees: string[] = [];
  const backUpNext = async (): Promise<void> => {
    const i = trees.length;
    const tree = join(work, `${name}-tree-${i}`);
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'file'), noise(`${name}-${i}`, 200_000));
    for (let j = 0; j < 20; j++) fs.writeFileSync(join(tree, `small-${j}`), `${name} ${i} ${j}`);
    await backUp(repository, tree);
    trees.push(tree);
    clock.offsetNs += DAY_NS;
  };
  const close = (): Promise<void> => repository.close();
  if (!storage) throw new Error('no storage');
  const aged = { path, repository, storage, clock, trees, [Symbol.asyncDispose]: close };
  for (let i = 0; i < backups; i++) {
    await backUpNext();
    // This run rewrites short packs. The next run deletes packs.
    if (i === 1) await maintain(aged);
  }
  clock.offsetNs += 2n * DAY_NS;
  return aged;
}

/**
 * The lie begins when garbage has been collected: the next listing of the index is that before
 * packs are deleted.
 */
function maintain(
  { repository, storage }: Aged,
  lie?: Lie,
  options: Partial<MaintenanceOptions> = {},
): Promise<MaintenanceReport> {
  return runMaintenance(repository, {
    mode: 'full',
    safety: 'full',
    force: false,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage: async (context) => {
      const stats = await collectGarbage(context);
      storage.lie = lie;
      return stats;
    },
    ...options,
  });
}

const packsOf = async ({ storage }: Aged): Promise<string[]> =>
  [...(await listAll(storage, 'p')), ...(await listAll(storage, 'q'))].map(({ id }) => String(id));

const deletedBy = (report: MaintenanceReport): number =>
  Number(report.tasks.find(({ task }) => task === 'full-delete-blobs')?.stats?.deletedPackCount);

async function assertWhole({ path, trees }: Aged, name: string): Promise<void> {
  await using reader = await openTest(path);
  const snapshots = await listSnapshots(reader);
  expect(snapshots).toHaveLength(trees.length);
  for (const [i, { source, rootEntry }] of snapshots.entries()) {
    if (!rootEntry) throw new Error('no root');
    const out = join(work, `${name}-out-${i}`);
    await restore(reader, rootEntry, out);
    assertSameTree(source.path, out);
  }
}

const isIndex = (prefix: string): boolean => /^[xn]/.test(prefix);
/** The newest blob that a backup wrote. Maintenance also writes blobs before it deletes. */
const newestOf = (blobs: readonly BlobMetadata[]): BlobMetadata | undefined =>
  blobs
    .filter(({ id }) => /-s[0-9a-f]+/.test(id) && !id.startsWith('xs'))
    .toSorted((a, b) => Number(b.timestampNs - a.timestampNs))[0];
const lies: Record<string, Lie> = {
  'is empty': (prefix, blobs) => (isIndex(prefix) ? [] : blobs),
  'lacks the newest index blob': (prefix, blobs) => {
    const newest = newestOf(blobs);
    return isIndex(prefix) ? blobs.filter((blob) => blob !== newest) : blobs;
  },
  // The same blobs in listings of every prefix. Otherwise a listing shows blobs that the other
  // listing lacks.
  'lacks most index blobs': (prefix, blobs) => {
    const written = blobs.filter(({ id }) => /^x?n/.test(id));
    const left = written.toSorted((a, b) => a.lengthBytes - b.lengthBytes).slice(0, 2);
    return isIndex(prefix)
      ? blobs.filter((blob) => !written.includes(blob) || left.includes(blob))
      : blobs;
  },
  'is two days old': (prefix, blobs) => {
    const limit = (newestOf(blobs)?.timestampNs ?? 0n) - 2n * DAY_NS;
    return isIndex(prefix) ? blobs.filter(({ timestampNs }) => timestampNs < limit) : blobs;
  },
};

describe.each([3, 1] as const)('format %s', (version) => {
  it.each(Object.entries(lies))(
    'no pack in use is deleted when the listing of the index %s',
    async (what, lie) => {
      const name = `v${version}-${what.replaceAll(' ', '-')}`;
      await using aged = await openAged(name, version);
      const packs = await packsOf(aged);
      const outcome = await maintain(aged, lie).then(
        () => 'done',
        (error: unknown) => (error as { code?: string }).code,
      );
      aged.storage.lie = undefined;
      // Format 1 has merged all its index blobs before, so a missing old index blob does no harm.
      if (version === 3 || outcome !== 'done') {
        expect(outcome).toMatch(/^(INDEX_INCOMPLETE|INDEX_SHRUNK)$/);
        expect(await packsOf(aged)).toEqual(expect.arrayContaining(packs));
      }
      await assertWhole(aged, name);
      // The next run finds the index as it is, and does its work.
      aged.clock.offsetNs += DAY_NS;
      await maintain(aged);
      await assertWhole(aged, `${name}-again`);
    },
  );
});

it('an index that is much smaller than the run before found it stops maintenance before it marks anything', async () => {
  await using aged = await openAged('shrunk');
  await maintain(aged);
  aged.clock.offsetNs += DAY_NS;
  aged.storage.lie = lies['lacks most index blobs'];
  const before = [...aged.repository.contents.entries()].filter(({ deleted }) => deleted).length;
  await expect(maintain(aged)).rejects.toMatchObject({
    code: 'INDEX_SHRUNK',
    message: expect.stringMatching(/nothing was deleted; run "longshore store check"/) as string,
  });
  aged.storage.lie = undefined;
  await aged.repository.contents.refresh();
  const after = [...aged.repository.contents.entries()].filter(({ deleted }) => deleted).length;
  expect(after).toBe(before);
});

it('while the last run refused to delete, what is marked deleted stays in the index', async () => {
  await using aged = await openAged('refused');
  await expect(maintain(aged, lies['lacks the newest index blob'])).rejects.toMatchObject({
    code: 'INDEX_INCOMPLETE',
  });
  aged.storage.lie = undefined;
  const watermark = async (): Promise<number> =>
    Math.max(...(await listAll(aged.storage, 'xw')).map(({ id }) => Number(id.slice(2))));
  const runNext = async (): Promise<string | undefined> => {
    aged.clock.offsetNs += DAY_NS;
    const { tasks } = await maintain(aged);
    return (tasks.find(({ task }) => task === 'full-drop-deleted-content') ?? expect.fail())
      .skipped;
  };
  const before = await watermark();
  expect(await runNext()).toMatch(/^the last run refused to delete/);
  expect(await watermark()).toBe(before);
  expect(await runNext()).toBeUndefined();
  expect(await watermark()).toBeGreaterThan(before);
});

it('a pack that another client has deleted since it was listed ends no run', async () => {
  await using aged = await openAged('two-maintainers');
  const gone = blobId(`p${'0'.repeat(32)}-s${'0'.repeat(16)}1`);
  let listings = 0;
  const report = await maintain(aged, (prefix, blobs) => {
    if (!'p'.startsWith(prefix) || blobs.length === 0) return blobs;
    listings++;
    return [...blobs, { id: gone, lengthBytes: 100_000, timestampNs: 10n ** 18n }];
  });
  expect(listings).toBeGreaterThan(0);
  expect(deletedBy(report)).toBeGreaterThan(0);
  aged.storage.lie = undefined;
  await assertWhole(aged, 'two-maintainers');
});

/**
 * Three large index blobs name the same contents: the backup's, the rewrite's, and a repeated one.
 */
async function openDuplicates(name: string): Promise<Aged> {
  const aged = await openAged(name, 3, 0);
  const { repository, storage, clock } = aged;
  const tree = join(work, `${name}-tree`);
  fs.mkdirSync(tree);
  for (let i = 0; i < 300; i++) fs.writeFileSync(join(tree, `small-${i}`), `${name} ${i}`);
  await backUp(repository, tree);
  aged.trees.push(tree);
  clock.offsetNs += 2n * DAY_NS;
  await maintain(aged);
  const { contents, codec } = repository;
  await putIndex(storage, codec, [...contents.entries()]);
  clock.offsetNs += 2n * DAY_NS;
  await maintain(aged);
  expect(contents.rowCount).toBeGreaterThan(2 * contents.contentCount);
  return aged;
}

describe('an index of many duplicate rows', () => {
  it('is not taken for one that shrank when it was compacted', async () => {
    await using aged = await openDuplicates('duplicates');
    const { storage, clock } = aged;
    const { contents, codec } = aged.repository;
    const [rows, count] = [contents.rowCount, contents.contentCount];
    // Two epochs go by, so that the first is compacted.
    for (const epoch of [1, 2]) {
      await storage.putBlob(blobId(`xe${epoch}`), [Buffer.from('epoch-marker')]);
      const [entry = expect.fail()] = contents.entries();
      await putIndex(storage, codec, [entry], { prefix: `xn${epoch}_` });
    }
    clock.offsetNs += DAY_NS;
    await maintain(aged);
    expect(await listAll(storage, 'xs0_')).toHaveLength(1);
    clock.offsetNs += DAY_NS;
    await maintain(aged);
    expect(contents.contentCount).toBeGreaterThanOrEqual(count);
    expect(contents.rowCount).toBeLessThan(rows / 2);
    await assertWhole(aged, 'duplicates');
  });

  it.each(['merged', 'lost'] as const)(
    'is looked at between two packs that are deleted: %s meanwhile',
    async (how) => {
      await using aged = await openDuplicates(`meanwhile-${how}`);
      const { repository, storage, clock } = aged;
      const { contents, codec } = repository;
      const orphans = ['a', 'b'].map((digit) => blobId(`p${digit.repeat(32)}`));
      for (const id of orphans) await storage.putBlob(id, [Buffer.from('nobody needs it')]);
      clock.offsetNs += 2n * DAY_NS;
      const rows = contents.rowCount;
      const remove = storage.deleteBlob.bind(storage);
      storage.deleteBlob = async (...parameters) => {
        await remove(...parameters);
        if (how === 'lost') storage.lie = lies['is empty'];
        // A fourth blob of that kind has all of them merged as they are read.
        else await putIndex(storage, codec, [...contents.entries()], { suffix: '-s0-c1' });
      };
      const context = {
        repository,
        safety: SAFETY.full,
        startNs: clock.nowNs(),
        signal: new AbortController().signal,
        logger: silentLogger,
      };
      const task = deleteUnreferencedPacks(context, { prefixes: orphans, batchPacks: 1 });
      if (how === 'lost') {
        await expect(task).rejects.toMatchObject({ code: 'INDEX_SHRUNK' });
        expect((await packsOf(aged)).filter((id) => orphans.includes(blobId(id)))).toHaveLength(1);
      } else {
        expect((await task).data.deletedPackCount).toBe(2);
        expect(contents.rowCount).toBeLessThan(rows / 2);
      }
    },
  );
});

it('an index blob that is lost for good keeps the packs, and Kopia reads it back from them', async () => {
  await using aged = await openAged('lost');
  const indexes = await listAll(aged.storage, 'xn');
  const lost = indexes.toSorted((a, b) => b.lengthBytes - a.lengthBytes)[0] ?? expect.fail();
  await aged.storage.deleteBlob(lost.id);
  const packs = await packsOf(aged);
  const failure = maintain(aged);
  await expect(failure).rejects.toMatchObject({ code: 'INDEX_INCOMPLETE' });
  await expect(failure).rejects.toThrow(/packs? holds? contents that the index does not know/);
  expect(await packsOf(aged)).toEqual(expect.arrayContaining(packs));
  if (!hasKopia) return;
  const kopia = new Kopia(PASSWORD).connect(aged.path);
  kopia.run('index', 'recover', '--commit', '--dangerous-commands=enabled');
  aged.clock.offsetNs += DAY_NS;
  await aged.repository.contents.refresh();
  await maintain(aged);
  await assertWhole(aged, 'lost');
});

describe('what may go, goes:', () => {
  it('nothing that is needed, in a repository that is new', async () => {
    await using aged = await openAged('new', 3, 0);
    for (let day = 0; day < 3; day++) {
      aged.clock.offsetNs += 2n * DAY_NS;
      await maintain(aged);
    }
    await using again = await openTest(aged.path);
    expect(await again.manifests.find({ type: 'policy' })).toHaveLength(1);
    expect(await again.manifests.find({ type: 'maintenance' })).toHaveLength(1);
  });

  it.each([3, 1] as const)(
    'all packs of snapshots that were all deleted, format %s',
    async (version) => {
      await using aged = await openAged(`expired-${version}`, version);
      const before = await packsOf(aged);
      for (const { id } of await listSnapshots(aged.repository))
        aged.repository.manifests.delete(id);
      await aged.repository.flush();
      let deleted = 0;
      for (let day = 0; day < 8; day++) {
        aged.clock.offsetNs += 2n * DAY_NS;
        deleted += deletedBy(await maintain(aged)) || 0;
      }
      expect(deleted).toBeGreaterThanOrEqual(4);
      const left = await packsOf(aged);
      expect(before.filter((id) => id.startsWith('p') && left.includes(id))).toEqual([]);
    },
  );

  it('packs of a session that never ended, and then its marker', async () => {
    await using aged = await openAged('crashed');
    // The process dies after its packs are put and before the index names them.
    let isDead = false;
    const victim = await openTest(aged.path, {
      clock: aged.clock,
      wrap: (inner) => {
        const storage = atClock(aged.path, aged.clock)(inner);
        const put = storage.putBlob.bind(storage);
        storage.putBlob = async (id, ...rest) => {
          if (isDead || id.startsWith('xn')) throw new Error('dead');
          return put(id, ...rest);
        };
        return storage;
      },
    });
    const tree = join(work, 'crashed-victim');
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'file'), noise('crashed', 300_000));
    const before = new Set(await packsOf(aged));
    await expect(backUp(victim, tree)).rejects.toThrow();
    isDead = true;
    await victim.close();
    const orphans = (await packsOf(aged)).filter((id) => !before.has(id));
    expect(orphans.length).toBeGreaterThan(0);
    expect(await listAll(aged.storage, 's')).toHaveLength(1);
    aged.clock.offsetNs += 5n * DAY_NS;
    await maintain(aged);
    const left = await packsOf(aged);
    expect(orphans.filter((id) => left.includes(id))).toEqual([]);
    expect(await listAll(aged.storage, 's')).toHaveLength(0);
    await assertWhole(aged, 'crashed');
  });

  it('the rest, when a run that was interrupted between two packs is done again', async () => {
    await using aged = await openAged('interrupted');
    for (const { id } of await listSnapshots(aged.repository)) aged.repository.manifests.delete(id);
    await aged.repository.flush();
    const remove = aged.storage.deleteBlob.bind(aged.storage);
    let lives = 3;
    aged.storage.deleteBlob = async (id, ...rest) => {
      if (/^[pq]/.test(id) && --lives === 0) throw new Error('power cut');
      return remove(id, ...rest);
    };
    let failures = 0;
    for (let day = 0; day < 8; day++) {
      aged.clock.offsetNs += 2n * DAY_NS;
      await maintain(aged).catch(() => failures++);
    }
    expect(failures).toBe(1);
    expect((await packsOf(aged)).filter((id) => id.startsWith('p'))).toEqual([]);
  });
});
