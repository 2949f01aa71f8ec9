import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import {
  CodedError,
  MINUTE_NS,
  OffsetClock,
  silentLogger,
  systemClock,
} from '../../../src/base/index.ts';
import { blobId, type BlobStorage, listAll } from '../../../src/blob/index.ts';
import { faulty } from '../../../src/blob/wrappers/faulty.ts';
import {
  type Repository,
  repairRepository,
  runMaintenance,
} from '../../../src/repository/index.ts';
import {
  attachRoot,
  findLostRoots,
  forgetSnapshots,
  listReadableSnapshots,
  planGarbageCollection,
  verifyTrees,
} from '../../../src/snapshot/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { pathOfBlob } from '../../support/damage.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('repair');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const { signal } = new AbortController();
const later = new OffsetClock(systemClock);
later.offsetNs = MINUTE_NS;
let directories = 0;

interface Damaged {
  readonly repo: string;
  readonly tree: string;
  /** Blobs that each of two backups put. */
  readonly put: readonly (readonly string[])[];
  readonly ids: readonly string[];
}

const namesOf = async (repo: string): Promise<string[]> => {
  await using repository = await openTest(repo);
  return (await listAll(repository.storage, '')).map(({ id }) => String(id));
};

/** Two backups of a tree, each with its own packs and index blob. */
async function twoBackups(): Promise<Damaged> {
  const at = join(work, String(directories++));
  const [repo, tree] = [join(at, 'repo'), join(at, 'tree')];
  fs.mkdirSync(join(tree, 'below'), { recursive: true });
  await createTest(repo);
  const put: string[][] = [];
  const ids: string[] = [];
  for (const text of ['first', 'second']) {
    const before = new Set(await namesOf(repo));
    fs.writeFileSync(join(tree, 'file'), text);
    fs.writeFileSync(join(tree, 'below', 'file'), `below ${text}`);
    await using repository = await openTest(repo);
    ids.push((await backUp(repository, tree)).id);
    put.push((await namesOf(repo)).filter((id) => !before.has(id)));
  }
  return { repo, tree, put, ids };
}

const blobOf = ({ put }: Damaged, prefix: string): string =>
  put[1]?.find((id) => id.startsWith(prefix)) ?? '';

const repair = (repository: Repository, dryRun = false): ReturnType<typeof repairRepository> =>
  repairRepository(repository, { dryRun, signal, logger: silentLogger });

const maintain = (repository: Repository): ReturnType<typeof runMaintenance> =>
  runMaintenance(repository, {
    mode: 'full',
    safety: 'none',
    force: true,
    dryRun: false,
    signal,
    logger: silentLogger,
    collectGarbage: planGarbageCollection,
  });

async function snapshotsOf(repo: string): Promise<string[]> {
  await using repository = await openTest(repo);
  const { snapshots } = await listReadableSnapshots(repository);
  const whole: string[] = [];
  for (const { id, rootEntry } of snapshots) {
    const { problems } = await verifyTrees(repository, rootEntry ? [rootEntry] : [], {
      readAll: true,
      signal,
    });
    if (problems.length === 0) whole.push(id);
  }
  return whole.sort();
}

const DAMAGES: [string, (bytes: Buffer) => Buffer][] = [
  ['empty', () => Buffer.alloc(0)],
  ['cut', (bytes) => bytes.subarray(0, 60)],
  ['all zeros', (bytes) => Buffer.alloc(bytes.length)],
  ['of other bytes', () => Buffer.alloc(200, 7)],
];

describe.each(DAMAGES)('an index blob that is %s', (_how, damage) => {
  it('leaves the rest readable, stops maintenance, and is rebuilt from the packs', async () => {
    const world = await twoBackups();
    const { repo, ids } = world;
    const blob = blobOf(world, 'xn');
    const path = pathOfBlob(repo, blob);
    fs.writeFileSync(path, damage(fs.readFileSync(path)));
    expect(await snapshotsOf(repo)).toEqual([ids[0]]);
    {
      await using repository = await openTest(repo);
      expect(repository.contents.unreadableIndexes).toHaveLength(1);
      const before = await namesOf(repo);
      await expect(maintain(repository)).rejects.toMatchObject({
        code: 'INDEX_UNREADABLE',
        facts: { blobId: blob },
      });
      expect(await namesOf(repo)).toEqual(before);
      const report = await repair(repository, true);
      expect(report).toMatchObject({ recoveredManifests: 1, damagedIndexes: [{ id: blob }] });
      expect(await namesOf(repo)).toEqual(before);
      await repair(repository);
    }
    expect(await snapshotsOf(repo)).toEqual([...ids].sort());
    const names = await namesOf(repo);
    expect(names).toContain(`damaged-${blob}`);
    expect(names).not.toContain(blob);
    await using repository = await openTest(repo);
    const again = await repair(repository);
    expect(again).toMatchObject({ damagedIndexes: [], recoveredContents: 0, lostManifests: [] });
    expect(await namesOf(repo)).toEqual(names);
    await maintain(repository);
    expect(await snapshotsOf(repo)).toEqual([...ids].sort());
  });
});

it('an index that becomes unreadable while maintenance runs stops it', async () => {
  const world = await twoBackups();
  const { repo, ids } = world;
  let isOver = false;
  await using repository = await openTest(repo, {
    wrap: (storage) =>
      faulty(storage, ({ operation, id, when }) => {
        // After its first look at the index.
        if (isOver || operation !== 'put' || when !== 'after' || id !== 'kopia.maintenance') return;
        isOver = true;
        fs.writeFileSync(pathOfBlob(repo, blobOf(world, 'xn')), '');
      }),
  });
  await expect(maintain(repository)).rejects.toMatchObject({ code: 'INDEX_UNREADABLE' });
  expect((await namesOf(repo)).filter((id) => id.startsWith('p'))).toHaveLength(
    world.put.flat().filter((id) => id.startsWith('p')).length,
  );
  await repair(await openTest(repo));
  expect(await snapshotsOf(repo)).toEqual([...ids].sort());
});

it('a backup beside an unreadable index relies on no pack that is gone', async () => {
  const world = await twoBackups();
  const { repo, tree } = world;
  fs.writeFileSync(pathOfBlob(repo, blobOf(world, 'xn')), '');
  // As if the unreadable index had said where the contents of this pack are now.
  const old = world.put[0]?.find((id) => id.startsWith('p')) ?? '';
  fs.rmSync(pathOfBlob(repo, old));
  fs.writeFileSync(join(tree, 'file'), 'first');
  fs.writeFileSync(join(tree, 'below', 'file'), 'below first');
  await using repository = await openTest(repo, { clock: later });
  const { id, rootEntry } = await backUp(repository, tree);
  const { problems } = await verifyTrees(repository, [rootEntry], { readAll: true, signal });
  expect(problems).toEqual([]);
  expect(await snapshotsOf(repo)).toContain(id);
});

it('a lost pack with the manifest of one snapshot leaves the others, and is taken back later', async () => {
  const world = await twoBackups();
  const { repo, tree, ids } = world;
  const path = pathOfBlob(repo, blobOf(world, 'q'));
  fs.renameSync(path, join(work, 'lost'));
  expect(await snapshotsOf(repo)).toEqual([ids[0]]);
  {
    await using repository = await openTest(repo);
    await expect(maintain(repository)).rejects.toMatchObject({ code: 'DAMAGED_BLOB' });
    // The blob may only be unreadable for now: the deletion of a backup must be repeated.
    await expect(forgetSnapshots(repository, [String(ids[1])], { signal })).rejects.toMatchObject({
      code: 'MANIFESTS_UNREADABLE',
    });
    // What lies in the lost pack is stored again.
    await using writer = await openTest(repo, { clock: later });
    const { rootEntry } = await backUp(writer, tree);
    expect((await verifyTrees(writer, [rootEntry], { readAll: true, signal })).problems).toEqual(
      [],
    );
    await repository.contents.refresh();
    const report = await repair(repository);
    expect(report.lostManifests).toMatchObject([{ blobId: blobOf(world, 'q') }]);
    expect((await repair(repository)).lostManifests).toEqual([]);
    await maintain(repository);
  }
  expect(await snapshotsOf(repo)).toHaveLength(2);
  fs.renameSync(join(work, 'lost'), path);
  await using repository = await openTest(repo);
  expect(await repair(repository)).toMatchObject({ returnedManifests: 1 });
  expect(await snapshotsOf(repo)).toContain(ids[1]);
});

it('snapshots that were deleted and merged away do not come back', async () => {
  const world = await twoBackups();
  const { repo, tree, ids } = world;
  {
    await using repository = await openTest(repo);
    await forgetSnapshots(repository, [String(ids[0])], { signal });
    // So many that the next flush merges them.
    for (let i = 0; i < 16; i++) {
      repository.manifests.put({ type: 'test' }, { i });
      await repository.flush();
    }
    await backUp(repository, tree);
  }
  const before = await snapshotsOf(repo);
  expect(before).not.toContain(ids[0]);
  for (const id of await namesOf(repo)) if (id.startsWith('x')) fs.rmSync(pathOfBlob(repo, id));
  await using repository = await openTest(repo);
  await repair(repository);
  expect(await snapshotsOf(repo)).toEqual(before);
  expect(await repository.manifests.find({ type: 'test' })).toHaveLength(16);
});

it('a run that is killed at any step leaves what it found or more', async () => {
  const world = await twoBackups();
  const { repo, ids } = world;
  const blob = blobOf(world, 'xn');
  fs.writeFileSync(pathOfBlob(repo, blob), '');
  fs.rmSync(pathOfBlob(repo, world.put[0]?.find((id) => id.startsWith('p')) ?? ''));
  const start = join(work, 'killed');
  let [steps, isDone] = [0, false];
  for (; !isDone; steps++) {
    fs.rmSync(start, { recursive: true, force: true });
    fs.cpSync(repo, start, { recursive: true });
    let left = steps;
    const killed = (storage: BlobStorage): BlobStorage =>
      faulty(storage, ({ operation, when }) => {
        if (operation !== 'put' && operation !== 'delete') return;
        // Now before the change, now after it.
        if (when === 'before' ? left-- <= 0 : left < 0) throw new CodedError('KILLED', 'killed');
      });
    {
      await using repository = await openTest(start, { wrap: killed });
      isDone = await repair(repository).then(
        () => true,
        () => false,
      );
    }
    await using repository = await openTest(start);
    const { damagedIndexes } = await repair(repository);
    if (isDone) expect(damagedIndexes).toEqual([]);
    expect(await snapshotsOf(start)).toEqual([ids[1]]);
    expect(repository.contents.unreadableIndexes).toEqual([]);
  }
  expect(steps).toBeGreaterThan(3);
});

it('a root directory whose snapshot is lost is found and attached again', async () => {
  const world = await twoBackups();
  const { repo, tree, ids } = world;
  {
    // Without the manifest nothing leads to its directories.
    await using repository = await openTest(repo);
    for (const { contentId, deleted } of [...repository.contents.entries({ prefix: 'm' })]) {
      if (!deleted) repository.contents.setDeleted(contentId, true);
    }
    await repository.contents.flush();
  }
  expect(await snapshotsOf(repo)).toEqual([]);
  await using repository = await openTest(repo);
  const roots = await findLostRoots(repository, { signal });
  expect(roots).toHaveLength(ids.length);
  expect(roots[0]).toMatchObject({ names: ['below', 'file'], summary: { files: 2, dirs: 2 } });
  const source = { host: 'host', userName: 'user', path: tree };
  const id = await attachRoot(repository, roots[0]?.objectId as never, source);
  await repository.flush();
  expect(await attachRoot(repository, roots[0]?.objectId as never, source)).toBe(id);
  expect(await snapshotsOf(repo)).toEqual([id]);
  expect(await findLostRoots(repository, { signal })).toHaveLength(1);
});

it('a copy of one shard that a sync program left does not pass for a whole compaction', async () => {
  const { loadEpochState, completeIndexSet } =
    await import('../../../src/repository/content/epoch-state.ts');
  const world = await twoBackups();
  const { repo, ids } = world;
  const path = pathOfBlob(repo, blobOf(world, 'xn'));
  const bytes = fs.readFileSync(path);
  await using repository = await openTest(repo);
  const { storage } = repository;
  const name = blobOf(world, 'xn').split('-')[0]?.slice(4) ?? '';
  for (const id of [
    `xs0_${name}-s0123456789abcdef-c3.sync-conflict-20260101-101010-ABCDEFG`,
    `xn0_${name}-s0123456789abcdef-c1.sync-conflict-20260101-101010-ABCDEFG`,
  ])
    await storage.putBlob(blobId(id), [bytes.subarray(0, 40)]);
  for (const epoch of [1, 2]) await storage.putBlob(blobId(`xe${epoch}`), [Buffer.from('m')]);
  expect(completeIndexSet(await loadEpochState(storage)).map(({ id }) => String(id))).toContain(
    blobOf(world, 'xn'),
  );
  expect(await snapshotsOf(repo)).toEqual([...ids].sort());
});

describe.runIf(hasKopia)('the real Kopia, after a repair', () => {
  it.each(['xn', 'q'])('verifies, backs up and maintains (lost: %s)', async (prefix) => {
    const world = await twoBackups();
    const { repo, tree } = world;
    const path = pathOfBlob(repo, blobOf(world, prefix));
    if (prefix === 'xn') fs.writeFileSync(path, '');
    else fs.rmSync(path);
    expect(() => new Kopia(PASSWORD).connect(repo).run('snapshot', 'list')).toThrow();
    await repair(await openTest(repo));
    const kopia = new Kopia(PASSWORD).connect(repo);
    kopia.verifyAll();
    kopia.run('snapshot', 'create', tree);
    kopia.run('maintenance', 'run', '--full');
    kopia.verifyAll();
    expect((await snapshotsOf(repo)).length).toBe(prefix === 'xn' ? 3 : 2);
  });
});
