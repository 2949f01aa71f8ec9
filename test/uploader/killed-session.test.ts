import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import { type MaintenanceReport, runMaintenance } from '../../src/repository/index.ts';
import {
  listSnapshots,
  planGarbageCollection,
  type SourceInfo,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import { sealBlob } from '../../src/repository/content/sealed-blob.ts';
import { isMarkerOf, readMarker } from '../../src/repository/content/session-marker.ts';
import { atClock } from '../support/clocked-storage.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('killed-session');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BYTES = 100_000_000;

interface Scene {
  readonly repo: string;
  readonly tree: string;
  readonly clock: OffsetClock;
  /** Lists and gets of a backup. */
  readonly requests: string[];
  readonly open: (wrap?: (storage: BlobStorage) => BlobStorage) => ReturnType<typeof openTest>;
}

async function newScene(name: string, bytes = BYTES): Promise<Scene> {
  const repo = join(work, `${name}-repo`);
  const tree = join(work, `${name}-tree`);
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'volume'), noise(name, bytes));
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  const requests: string[] = [];
  const watch = (storage: BlobStorage): BlobStorage =>
    faulty(atClock(repo, clock)(storage), ({ operation, id, when }) => {
      if (when === 'before') requests.push(`${operation} ${id}`);
    });
  return {
    repo,
    tree,
    clock,
    requests,
    open: (wrap = (storage) => storage) =>
      openTest(repo, { clock, wrap: (storage) => wrap(watch(storage)) }),
  };
}

/** A backup whose storage is gone at a put: nothing is put or deleted any more. */
async function killed(
  { open, tree }: Scene,
  { atPut = 5, at = 'p', source }: { atPut?: number; at?: string; source?: SourceInfo } = {},
): Promise<void> {
  let puts = 0;
  await using repository = await open((storage) =>
    faulty(storage, ({ operation, id, when }) => {
      if (when !== 'before' || (operation !== 'put' && operation !== 'delete')) return;
      if (operation === 'put' && id.startsWith(at)) puts++;
      if (puts >= atPut) throw new Error('the power is gone');
    }),
  );
  const options = source ? { source } : {};
  await expect(backUp(repository, tree, options)).rejects.toThrow('the power is gone');
}

/** Backs up, verifies all snapshots, and returns how many bytes were new. */
async function backUpAgain({ open }: Scene, path: string): Promise<number> {
  await using repository = await open();
  const { counters } = await backUp(repository, path);
  const roots = (await listSnapshots(repository)).flatMap(({ rootEntry }) => rootEntry ?? []);
  const { signal } = new AbortController();
  expect((await verifyTrees(repository, roots, { readAll: true, signal })).problems).toEqual([]);
  return counters.bytesNew;
}

async function indexesIn({ open }: Scene): Promise<number> {
  await using repository = await open();
  let count = 0;
  for await (const { id } of repository.storage.listBlobs('xn')) if (id) count++;
  return count;
}

it('the packs of a killed backup are used again, though no index blob names them', async () => {
  const scene = await newScene('killed');
  const before = await indexesIn(scene);
  await killed(scene);
  expect(await indexesIn(scene)).toBe(before);
  const kopia = hasKopia ? new Kopia(PASSWORD).connect(scene.repo) : undefined;
  // The source path in the marker is no field of Kopia's.
  if (kopia) expect(kopia.run('session', 'list')).toMatch(/testhost|tester/);
  const bytesNew = await backUpAgain(scene, scene.tree);
  // Four packs of some 20 MB were put.
  expect(bytesNew).toBeLessThan(BYTES * 0.4);
  kopia?.verifyAll();
});

it('a backup after a complete one lists no packs, and neither does one of another path', async () => {
  const scene = await newScene('others');
  const other = join(work, 'other-tree');
  fs.mkdirSync(other);
  fs.writeFileSync(join(other, 'file'), 'other');
  await killed(scene);
  const listed = (): string[] => scene.requests.filter((each) => /^list [pq]/.test(each));
  scene.requests.length = 0;
  await backUpAgain(scene, other);
  expect(listed()).toEqual([]);
  await backUpAgain(scene, scene.tree);
  expect(listed()).not.toEqual([]);
  scene.requests.length = 0;
  fs.writeFileSync(join(scene.tree, 'more'), 'more');
  await backUpAgain(scene, scene.tree);
  expect(listed()).toEqual([]);
});

it('a snapshot whose manifest was put, but not named before a kill, does not appear', async () => {
  const scene = await newScene('manifest');
  // The first index blob of the backup would name all of it.
  await killed(scene, { at: 'xn', atPut: 1 });
  {
    await using repository = await scene.open();
    fs.writeFileSync(join(scene.tree, 'more'), 'more');
    const { counters } = await backUp(repository, scene.tree);
    expect(counters.bytesNew).toBeLessThan(1000);
  }
  // An open repository has read its manifests before the packs are used again.
  await using fresh = await scene.open();
  expect(await listSnapshots(fresh)).toHaveLength(1);
});

it('hosts that back up the same path leave the packs of each other alone', async () => {
  const scene = await newScene('hosts', 1_000_000);
  const { tree: path } = scene;
  const one = { host: 'one', userName: 'tester', path };
  const other = { host: 'other', userName: 'tester', path };
  await killed(scene, { at: 'xn', atPut: 1, source: one });
  const bytesOf = async (source: SourceInfo): Promise<number> => {
    await using repository = await scene.open();
    const { counters } = await backUp(repository, path, { source });
    return counters.bytesNew;
  };
  expect(await bytesOf(other)).toBeGreaterThanOrEqual(1_000_000);
  expect(scene.requests.filter((each) => /^list [pq]/.test(each))).toEqual([]);
  // The other host has completed a backup since, which does not explain the killed session.
  await bytesOf(one);
  expect(scene.requests.filter((each) => /^list [pq]/.test(each))).not.toEqual([]);
});

it.each([
  ['one host', { longshoreOwner: 'tester@testhost' }, true],
  ['another host', { longshoreOwner: 'tester@other' }, false],
  ['another user', { longshoreOwner: 'other@testhost' }, false],
  ['an older version', {}, true],
])('a marker of %s', async (name, fields, isOwn) => {
  const repo = join(work, `marker-${name}`);
  await createTest(repo);
  await using repository = await openTest(repo);
  const { storage, codec } = repository;
  const marker = {
    id: 's1',
    checkpointTime: '2026-01-01T00:00:00Z',
    longshorePath: '/p',
    ...fields,
  };
  const sealed = sealBlob(codec, 's', '-s1', Buffer.from(JSON.stringify(marker)));
  await storage.putBlob(sealed.id, [sealed.bytes]);
  const read = await readMarker(storage, codec, sealed.id);
  expect(isMarkerOf(read, { host: 'testhost', userName: 'tester', path: '/p' })).toBe(isOwn);
});

it('a pack that is left alone does not keep maintenance from deleting packs later', async () => {
  const scene = await newScene('whole');
  await killed(scene, { at: 'xn', atPut: 1 });
  await backUpAgain(scene, scene.tree);
  const maintain = async (): Promise<MaintenanceReport> => {
    await using repository = await scene.open();
    const { signal } = new AbortController();
    return await runMaintenance(repository, {
      mode: 'full',
      safety: 'full',
      force: false,
      dryRun: false,
      signal,
      logger: silentLogger,
      collectGarbage: planGarbageCollection,
    });
  };
  scene.clock.offsetNs += 100n * HOUR_NS;
  await maintain();
  {
    await using repository = await scene.open();
    for (const { id } of await listSnapshots(repository)) repository.manifests.delete(id);
    await repository.flush();
  }
  for (let run = 0; run < 6; run++) {
    scene.clock.offsetNs += 30n * HOUR_NS;
    await maintain();
  }
  await using repository = await scene.open();
  const left = await Array.fromAsync(repository.storage.listBlobs('p'));
  expect(left.map(({ id }) => id)).toEqual([]);
}, 120_000);

it('contents that are used again count as new, so garbage collection spares them for a day', async () => {
  const scene = await newScene('age');
  await killed(scene);
  scene.clock.offsetNs += 40n * HOUR_NS;
  const bytesNew = await backUpAgain(scene, scene.tree);
  expect(bytesNew).toBeLessThan(BYTES * 0.4);
  await using repository = await scene.open();
  const sinceSeconds = Number((scene.clock.nowNs() - HOUR_NS) / 1_000_000_000n);
  for (const entry of repository.contents.entries({ prefix: '' })) {
    expect(entry.timestampSeconds).toBeGreaterThan(sinceSeconds);
  }
});

it('packs that maintenance may be deleting are not used again', async () => {
  const scene = await newScene('old');
  await killed(scene);
  scene.clock.offsetNs += 80n * HOUR_NS;
  const bytesNew = await backUpAgain(scene, scene.tree);
  expect(bytesNew).toBeGreaterThanOrEqual(BYTES);
});
