import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, describe, expect, it } from 'vitest';
import {
  HOUR_NS,
  MINUTE_NS,
  OffsetClock,
  silentLogger,
  Stopwatch,
  systemClock,
} from '../../../src/base/index.ts';
import { blobId, type BlobStorage } from '../../../src/blob/index.ts';
import { faulty } from '../../../src/blob/wrappers/faulty.ts';
import { ForwardingStorage } from '../../../src/blob/wrappers/forwarding.ts';
import {
  type MaintenanceReport,
  prefixOf,
  type Repository,
  runMaintenance,
} from '../../../src/repository/index.ts';
import {
  type DirectoryEntry,
  listSnapshots,
  planGarbageCollection as collectGarbage,
  readDirectory,
  saveSnapshot,
  verifyTrees,
} from '../../../src/snapshot/index.ts';
import {
  newUploadCounters,
  restoreBlocks,
  type UploadCounters,
  type UploadResult,
} from '../../../src/uploader/index.ts';
import { LongUpload } from '../../../src/uploader/upload/long-upload.ts';
import { atClock } from '../../support/clocked-storage.ts';
import { gatedPool } from '../../support/gated-pool.ts';
import { age } from '../../support/trees.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import {
  backUp,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
  restore,
} from '../../support/repositories.ts';

const work = tempDirectory('long-upload');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const signal = new AbortController().signal;
const LARGE_BYTES = 36 << 20;
/**
 * Pieces of large files that are read before the upload is held. Some of them are stored by then.
 * The last chunks wait for more chunks to be hashed with.
 */
const PIECES_BEFORE = 7;

function write(path: string, seed: string, bytes = 300_000): void {
  fs.mkdirSync(join(path, '..'), { recursive: true });
  fs.writeFileSync(path, noise(seed, bytes));
}

/**
 * A repository, its clock, and an upload that stands still in the middle of its large files for as
 * long as `meanwhile` takes.
 */
class Scene {
  readonly clock = new OffsetClock(systemClock);
  readonly path: string;
  readonly tree: string;
  readonly counters: UploadCounters = newUploadCounters();

  constructor(name: string) {
    this.path = at(`${name}-repo`);
    this.tree = at(`${name}-tree`);
  }

  open(options: Parameters<typeof openTest>[1] = {}): Promise<Repository> {
    const { clock, path } = this;
    return openTest(path, { clock, wrap: atClock(path, clock), ...options });
  }

  /** The upload is held once `smallFiles` are stored or kept, and goes on after `meanwhile`. */
  openHeld(
    smallFiles: number,
    meanwhile: () => Promise<void>,
    options: Parameters<typeof openTest>[1] = {},
  ): Promise<Repository> {
    let pieces = 0;
    let held: Promise<void> | undefined;
    const hold = async (): Promise<void> => {
      const { counters } = this;
      while (counters.files + counters.cachedFiles < smallFiles) await sleep(20);
      await meanwhile();
    };
    const pool = gatedPool((method) => {
      if (method !== 'cut' || ++pieces <= PIECES_BEFORE) return undefined;
      held ??= hold();
      return held;
    });
    return this.open({ ...options, factory: pool });
  }

  maintain(repository: Repository): Promise<MaintenanceReport> {
    return runMaintenance(repository, {
      mode: 'full',
      safety: 'full',
      force: false,
      dryRun: false,
      signal,
      logger: silentLogger,
      collectGarbage,
    });
  }

  /** True once a checkpoint is there that is not older than the clock; false when none comes. */
  async hasCheckpoint(repository: Repository, waitMs: number): Promise<boolean> {
    const nowNs = this.clock.nowNs();
    for (let waited = 0; waited < waitMs; waited += 200) {
      await sleep(200);
      for (const { incomplete, endTimeNs } of await snapshotsNow(repository)) {
        if (incomplete === 'checkpoint' && endTimeNs >= nowNs) return true;
      }
    }
    return false;
  }
}

async function snapshotsNow(
  repository: Repository,
): Promise<Awaited<ReturnType<typeof listSnapshots>>> {
  await repository.contents.refresh();
  repository.manifests.invalidate();
  return listSnapshots(repository);
}

/**
 * A fresh reader finds every content of the snapshot, and the counters say that nothing went wrong.
 */
async function assertWhole(scene: Scene, { snapshot, counters }: UploadResult): Promise<void> {
  expect([snapshot.incomplete, counters.errors]).toEqual([undefined, 0]);
  await using reader = await scene.open();
  const roots = (await listSnapshots(reader)).flatMap(({ rootEntry }) => rootEntry ?? []);
  const result = await verifyTrees(reader, roots, { readAll: true, signal });
  expect(result.problems).toEqual([]);
}

/**
 * A tree with files of the previous snapshot, files of an expired snapshot, new files, and two
 * large files.
 */
async function makeTree(scene: Scene, repository: Repository): Promise<{ smallFiles: number }> {
  const { tree, clock } = scene;
  const old = `${tree}-old`;
  for (let i = 0; i < 4; i++) write(join(old, `old-${i}`), `old-${i}`);
  const expired = await backUp(repository, old);
  for (let i = 0; i < 3; i++) write(join(tree, 'kept', `kept-${i}`), `kept-${i}`);
  for (let i = 0; i < 3; i++) write(join(tree, 'half', `half-${i}`), `half-${i}`);
  fs.mkdirSync(join(tree, 'half', 'sub'));
  await backUp(repository, tree);
  repository.manifests.delete(expired.id);
  await repository.flush();
  clock.offsetNs += 200n * HOUR_NS;
  for (let i = 0; i < 4; i++) write(join(tree, 'again', `old-${i}`), `old-${i}`);
  for (let i = 0; i < 3; i++) write(join(tree, 'new', `new-${i}`), `new-${i}`);
  write(join(tree, 'a.bin'), 'a', LARGE_BYTES);
  write(join(tree, 'half', 'sub', 'b.bin'), 'b', LARGE_BYTES);
  return { smallFiles: 13 };
}

/** Full maintenance at +25 h and then every 6 h, while the upload stands still. */
async function twoDays(scene: Scene, waitMs: number): Promise<MaintenanceReport[]> {
  const { clock, tree } = scene;
  await using owner = await scene.open();
  for (const { id, source, incomplete } of await snapshotsNow(owner)) {
    if (source.path === tree && !incomplete) owner.manifests.delete(id);
  }
  await owner.flush();
  const reports: MaintenanceReport[] = [];
  for (const hours of [25n, 6n, 6n, 6n, 6n]) {
    clock.offsetNs += hours * HOUR_NS;
    const isThere = await scene.hasCheckpoint(owner, waitMs);
    expect.soft(isThere, `a checkpoint ${hours} h later`).toBe(true);
    reports.push(await scene.maintain(owner));
  }
  return reports;
}

const REPAIR = 'contents of this upload are missing or damaged; storing them again';

describe('an upload that takes two days, with full maintenance every six hours', () => {
  it('keeps all it has stored or found by checkpoints', { timeout: 400_000 }, async () => {
    const scene = new Scene('tree');
    await createTest(scene.path);
    await using first = await scene.open();
    const { smallFiles } = await makeTree(scene, first);
    let reports: MaintenanceReport[] = [];
    const meanwhile = async (): Promise<void> => {
      reports = await twoDays(scene, 30_000);
    };
    const logger = recordingLogger();
    await using writer = await scene.openHeld(smallFiles, meanwhile);
    const { counters } = scene;
    const result = await backUp(writer, scene.tree, { counters, parallel: 1, logger });
    expect(reports).toHaveLength(5);
    await assertWhole(scene, result);
    await using reader = await scene.open();
    await restore(reader, result.rootEntry, at('tree-out'));
    assertSameTree(scene.tree, at('tree-out'));
    expect((await snapshotsNow(reader)).map(({ id }) => id)).toEqual([result.id]);
    // No content was ever without a root, so the check at the end did no work.
    expect(logger.messages).not.toContain(REPAIR);
  });

  it(
    'of a raw volume too, and the real Kopia sees the checkpoint as incomplete',
    { timeout: 400_000 },
    async () => {
      const scene = new Scene('volume');
      await createTest(scene.path);
      write(scene.tree, 'volume', LARGE_BYTES);
      let seen: KopiaSnapshot[] = [];
      const meanwhile = async (): Promise<void> => {
        await twoDays(scene, 30_000);
        await expectNoRestore(scene);
        if (!hasKopia) return;
        const kopia = new Kopia(PASSWORD).connect(scene.path);
        kopia.verifyAll();
        // Kopia's JSON lists incomplete ones in any case.
        seen = kopia.json<KopiaSnapshot[]>('snapshot', 'list', '--all');
      };
      const logger = recordingLogger();
      await using writer = await scene.openHeld(0, meanwhile);
      const result = await backUp(writer, scene.tree, { block: true, logger });
      await assertWhole(scene, result);
      expect(logger.messages).not.toContain(REPAIR);
      await using reader = await scene.open();
      await restoreBlocks(reader, result.rootEntry, at('volume-out'), {
        logger: silentLogger,
        signal,
      });
      expect(fs.readFileSync(at('volume-out')).equals(fs.readFileSync(scene.tree))).toBe(true);
      if (hasKopia) expect(seen.map(({ incomplete }) => incomplete)).toEqual(['checkpoint']);
    },
  );
});

/**
 * Pieces of a checkpoint follow one another wherever they belong: over a device they would be
 * damage.
 */
async function expectNoRestore(scene: Scene): Promise<void> {
  await using reader = await scene.open();
  const [{ rootEntry, incomplete } = {}] = await snapshotsNow(reader);
  if (!rootEntry) throw new Error('there is a checkpoint');
  const [file] = await readDirectory(reader, rootEntry.objectId);
  expect([incomplete, file?.type]).toEqual(['checkpoint', 'f']);
  const target = at('checkpoint-out');
  for (const root of [rootEntry, file as DirectoryEntry]) {
    await expect(
      restoreBlocks(reader, root, target, { logger: silentLogger, signal }),
    ).rejects.toMatchObject({
      code: 'SNAPSHOT_INCOMPLETE',
      message: expect.stringContaining('(checkpoint)') as string,
    });
  }
  expect(fs.existsSync(target)).toBe(false);
}

interface KopiaSnapshot {
  readonly id: string;
  readonly incomplete?: string;
}

/** Removes the stored part of the upload, as a collection would without a root. */
async function takeAway(scene: Scene, how: 'marked' | 'dropped' | 'pack deleted'): Promise<void> {
  await using owner = await scene.open();
  scene.clock.offsetNs += 5n * HOUR_NS;
  expect(await scene.hasCheckpoint(owner, 30_000)).toBe(true);
  const doomed = [...owner.contents.entries()].filter(
    ({ contentId }) => prefixOf(contentId) !== 'm',
  );
  // Pieces of the large file or volume, and the directory that names them.
  expect(doomed.some(({ contentId }) => prefixOf(contentId) === '')).toBe(true);
  expect(doomed.some(({ contentId }) => prefixOf(contentId) === 'k')).toBe(true);
  if (how === 'pack deleted') {
    const packs = new Set(
      doomed
        .filter(({ packBlobId }) => packBlobId.startsWith('p'))
        .map(({ packBlobId }) => packBlobId),
    );
    for (const id of packs) await owner.storage.deleteBlob(blobId(id));
    return;
  }
  for (const { contentId } of doomed) owner.contents.setDeleted(contentId, true);
  await owner.contents.flush();
  if (how === 'marked') return;
  const seconds = Number(scene.clock.nowNs() / 1_000_000_000n);
  await owner.storage.putBlob(blobId(`xw${seconds + 1}`), [Buffer.from('deletion-watermark')]);
  for (const id of new Set(doomed.map(({ packBlobId }) => packBlobId))) {
    const left = [...owner.contents.entries()].some(
      (entry) => entry.packBlobId === id && prefixOf(entry.contentId) === 'm',
    );
    if (!left) await owner.storage.deleteBlob(blobId(id));
  }
}

describe.each(['marked', 'dropped', 'pack deleted'] as const)(
  'contents of a long upload that are %s meanwhile',
  (how) => {
    it.each(['tree', 'volume'])(
      'are stored again before its snapshot counts: a %s',
      { timeout: 400_000 },
      async (kind) => {
        const scene = new Scene(`${how.replace(' ', '-')}-${kind}`);
        await createTest(scene.path);
        if (kind === 'volume') write(scene.tree, how, LARGE_BYTES);
        else {
          for (let i = 0; i < 3; i++) write(join(scene.tree, 'small', `small-${i}`), `small-${i}`);
          write(join(scene.tree, 'large.bin'), how, LARGE_BYTES);
        }
        const logger = recordingLogger();
        const { counters } = scene;
        await using writer = await scene.openHeld(kind === 'tree' ? 3 : 0, () =>
          takeAway(scene, how),
        );
        const result = await backUp(writer, scene.tree, {
          counters,
          logger,
          block: kind === 'volume',
        });
        expect(logger.messages.includes(REPAIR)).toBe(how !== 'marked');
        await assertWhole(scene, result);
        expect(result.snapshot.stats.fileCount).toBe(kind === 'tree' ? 4 : 1);
        if (kind === 'volume') return;
        await using reader = await scene.open();
        await restore(reader, result.rootEntry, at(`${how}-out`));
        assertSameTree(scene.tree, at(`${how}-out`));
      },
    );
  },
);

/** Says that packs are put and keeps none while it is told to. */
class LosingStorage extends ForwardingStorage {
  isLosing = false;

  override async putBlob(...parameters: Parameters<BlobStorage['putBlob']>): Promise<void> {
    if (!this.isLosing || !parameters[0].startsWith('p')) await super.putBlob(...parameters);
  }
}

it(
  'a long upload whose contents vanish again and again fails, and the next run stores them',
  { timeout: 400_000 },
  async () => {
    const scene = new Scene('vanishing');
    await createTest(scene.path);
    write(join(scene.tree, 'large.bin'), 'vanishing', LARGE_BYTES);
    let losing: LosingStorage | undefined;
    const wrap = (inner: BlobStorage): BlobStorage => {
      losing = new LosingStorage(atClock(scene.path, scene.clock)(inner));
      losing.isLosing = true;
      return losing;
    };
    const meanwhile = (): Promise<void> => {
      scene.clock.offsetNs += 5n * HOUR_NS;
      return Promise.resolve();
    };
    await using writer = await scene.openHeld(0, meanwhile, { wrap });
    await expect(backUp(writer, scene.tree)).rejects.toMatchObject({
      code: 'CONTENTS_LOST',
      message: expect.stringContaining('run the backup again') as string,
    });
    expect(await snapshotsNow(writer)).toEqual([]);
    await using again = await scene.open();
    await assertWhole(scene, await backUp(again, scene.tree));
  },
);

/**
 * A backup whose last flush sleeps for days behind its first index blob, while another client
 * maintains the repository.
 */
async function sleepyFlush(
  name: string,
  { checkpointed, forever = false }: { checkpointed: boolean; forever?: boolean },
): Promise<{ scene: Scene; result: Promise<UploadResult>; writer: Repository }> {
  const scene = new Scene(name);
  const { tree, clock, path } = scene;
  await createTest(path, {}, { clock, wrap: atClock(path, clock) });
  for (let i = 0; i < 3; i++) write(join(tree, `file-${i}`), `${name}-${i}`, 8_000_000);
  {
    // The same files were backed up once, and nothing holds them any more.
    await using before = await scene.open();
    const expired = await backUp(before, tree);
    before.manifests.delete(expired.id);
    await before.flush();
  }
  clock.offsetNs += 200n * HOUR_NS;
  write(join(tree, 'new'), `${name}-new`, 8_000_000);
  let [hasSlept, losing] = [false, undefined as LosingStorage | undefined];
  const wrap = (inner: BlobStorage): BlobStorage => {
    losing = new LosingStorage(atClock(path, clock)(inner));
    return faulty(losing, async ({ operation, id, when }) => {
      if (hasSlept || operation !== 'put' || when !== 'after' || !id.startsWith('xn')) return;
      hasSlept = true;
      for (const hours of [25n, 6n, 6n, 6n, 6n]) {
        clock.offsetNs += hours * HOUR_NS;
        await using owner = await scene.open();
        await scene.maintain(owner);
      }
      if (forever && losing) losing.isLosing = true;
    });
  };
  const writer = await scene.open({ wrap });
  const options = { indexIntervalNs: 1n, checkpointIntervalNs: 3000n * HOUR_NS };
  const result = backUp(writer, tree, {
    ...options,
    ...(checkpointed && { checkpointIntervalNs: 1_000_000n }),
  });
  return { scene, result, writer };
}

it.each([true, false])(
  'a machine that sleeps for days in the last flush stores again what was collected (checkpoints: %s)',
  { timeout: 400_000 },
  async (checkpointed) => {
    const { scene, result, writer } = await sleepyFlush(`sleepy-${checkpointed}`, { checkpointed });
    await assertWhole(scene, await result);
    // A single snapshot, without a checkpoint.
    expect((await snapshotsNow(writer)).map(({ id }) => id)).toEqual([(await result).id]);
    await writer.close();
  },
);

it(
  'a backup whose contents are lost in its last flush, and again, leaves no snapshot',
  { timeout: 400_000 },
  async () => {
    const { result, writer } = await sleepyFlush('sleepy-lost', {
      checkpointed: true,
      forever: true,
    });
    await expect(result).rejects.toMatchObject({ code: 'CONTENTS_LOST' });
    expect(await snapshotsNow(writer)).toEqual([]);
    await writer.close();
  },
);

it(
  'a long upload that is killed leaves its checkpoint, and the next run builds on it and takes it away',
  { timeout: 400_000 },
  async () => {
    const scene = new Scene('killed');
    await createTest(scene.path);
    for (let i = 0; i < 3; i++) write(join(scene.tree, 'small', `small-${i}`), `small-${i}`);
    write(join(scene.tree, 'large.bin'), 'killed', LARGE_BYTES);
    age(scene.tree);
    const { counters } = scene;
    const meanwhile = async (): Promise<void> => {
      scene.clock.offsetNs += HOUR_NS;
      await using other = await scene.open();
      expect(await scene.hasCheckpoint(other, 120_000)).toBe(true);
      throw new Error('the power is gone');
    };
    await using writer = await scene.openHeld(3, meanwhile);
    await expect(backUp(writer, scene.tree, { counters })).rejects.toThrow('the power is gone');
    await using next = await scene.open();
    const [left, ...more] = await snapshotsNow(next);
    expect([left?.incomplete, left?.pins, more.length]).toEqual(['checkpoint', undefined, 0]);
    const names = (await readDirectory(next, left?.rootEntry?.objectId as never)).map(
      ({ name }) => name,
    );
    expect(names).toEqual([
      'small',
      expect.stringMatching(/^\.checkpointed\.large\.bin\.[0-9a-f]+$/),
    ]);
    const result = await backUp(next, scene.tree);
    expect(result.counters.cachedFiles).toBe(3);
    expect((await snapshotsNow(next)).map(({ id }) => id)).toEqual([result.id]);
    await assertWhole(scene, result);
  },
);

/**
 * The checkpoints of four backups of the tree on other nodes, and of a killed backup. Our own
 * backup took five hours before.
 */
async function leftBeside(clock: OffsetClock, name: string, aheadNs: bigint): Promise<string[]> {
  const path = at(`${name}-repo`);
  const tree = at(`${name}-tree`);
  await createTest(path);
  write(join(tree, 'file'), name);
  const storageClock = new OffsetClock(clock);
  const wrap = atClock(path, storageClock);
  await using repository = await openTest(path, { clock, wrap });
  const { snapshot, rootEntry } = await backUp(repository, tree);
  clock.offsetNs += 26n * HOUR_NS;
  const names = new Map<string, string>();
  const add = (label: string, ageNs: bigint): void => {
    const startTimeNs = clock.nowNs() - ageNs;
    const checkpoint = { ...snapshot, startTimeNs, incomplete: 'checkpoint' };
    names.set(saveSnapshot(repository, checkpoint), label);
  };
  for (const i of [1n, 2n, 3n, 4n]) add(`running ${i}`, i * MINUTE_NS);
  add('killed', 24n * HOUR_NS);
  await repository.flush();
  clock.offsetNs += aheadNs;
  storageClock.offsetNs -= aheadNs;
  const startTimeNs = clock.nowNs();
  const long = new LongUpload({
    repository,
    sinceStart: new Stopwatch(clock),
    logger: silentLogger,
    signal,
    open: { root: undefined },
    compressor: undefined,
    retention: {},
    snapshotOf: (root) => ({ ...snapshot, rootEntry: root, startTimeNs }),
    onChecked: () => undefined,
  });
  clock.offsetNs += 5n * HOUR_NS;
  await long.confirm(rootEntry, () => expect.fail('nothing is lost'));
  await long.stop();
  const left = (await snapshotsNow(repository)).map(({ id }) => names.get(id) ?? '');
  return left.filter((label) => label !== '').sort();
}

it.each([
  ['a year ahead', 365n * 24n * HOUR_NS],
  ['an hour behind', -HOUR_NS],
])('a clock that is %s takes no checkpoint of others away', async (name, aheadNs) => {
  const clock = new OffsetClock(systemClock);
  const left = await leftBeside(clock, name.replaceAll(' ', '-'), aheadNs);
  const running = ['running 1', 'running 2', 'running 3', 'running 4'];
  expect(left).toEqual(['killed', ...running]);
});

it('a clock that is right takes the checkpoint of a backup away that was killed a day ago, and no other', async () => {
  const left = await leftBeside(new OffsetClock(systemClock), 'right', 0n);
  expect(left).toEqual(['running 1', 'running 2', 'running 3', 'running 4']);
});
