import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CanceledError, silentLogger } from '../../src/base/index.ts';
import {
  backupVolume,
  type Parents,
  podVolumeSource,
  restoreVolume,
  type WrittenVolume,
} from '../../src/mover/index.ts';
import { UPLOAD_TAG } from '../../src/mover/snapshot-source.ts';
import type { Repository } from '../../src/repository/index.ts';
import { listSnapshots, saveSnapshot, type Snapshot } from '../../src/snapshot/index.ts';
import { backUp, createTest, openTest, PASSWORD } from '../support/repositories.ts';
import { canMount, mountSmallDisk } from '../support/full-disk.ts';
import { assertSameTree, hasKopia, Kopia } from '../support/kopia.ts';
import { makeTree } from '../support/trees.ts';

const root = fs.mkdtempSync(join(tmpdir(), 'longshore-pod-volume-'));
const UID = '6f0e4a52-0b5c-0b3e-9c1f-3b6d1d5a7e11';
let repository: Repository;
beforeAll(async () => {
  await createTest(join(root, 'repo'));
  repository = await openTest(join(root, 'repo'), { threads: true });
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(root, { recursive: true, force: true });
});

let made = 0;
function makeVolume(files: Readonly<Record<string, string>>, mtime = 1_700_000_000): string {
  const path = join(root, `volume-${made++}`);
  fs.mkdirSync(path);
  for (const [name, text] of Object.entries(files)) {
    fs.mkdirSync(join(path, name, '..'), { recursive: true });
    fs.writeFileSync(join(path, name), text);
    fs.utimesSync(join(path, name), mtime, mtime);
  }
  return path;
}

const options = (path: string) => ({
  repository,
  path,
  isBlock: false,
  logger: silentLogger,
  signal: new AbortController().signal,
  config: {},
  onProgress: () => undefined,
  progressIntervalMs: 10,
  stallMs: 60_000,
});
const upload = { sourceNamespace: 'app', sourcePod: 'web-0', sourceVolume: 'data', uid: 'pvb-1' };
const snapshotsOf = (pod: string, volume = 'data'): Promise<Snapshot[]> =>
  listSnapshots(repository, { source: podVolumeSource('app', pod, volume) });

describe('a volume of a pod', () => {
  it('is recorded as Velero records it', async () => {
    const path = join(root, 'tree');
    makeTree(path, 'pod');
    const { snapshotId } = await backupVolume({ ...options(path), ...upload });
    const [snapshot] = await snapshotsOf('web-0');
    expect(snapshot).toMatchObject({
      id: snapshotId,
      description: 'Kopia Uploader',
      pins: ['velero-pin'],
      source: {
        host: 'default',
        userName: 'default',
        path: 'snapshot-pod-volume/kopia/app/web-0/data',
      },
    });
    expect(snapshot?.tags).toEqual({
      'snapshot-requester': 'snapshot-pod-volume',
      'snapshot-uploader': 'kopia',
      [UPLOAD_TAG]: 'pvb-1',
    });
    const again = await backupVolume({ ...options(path), ...upload });
    expect(again).toMatchObject({ snapshotId, incrementalBytes: 0 });
  });

  it.skipIf(!hasKopia)('can be listed and restored by the real Kopia', async () => {
    const path = join(root, 'kopias');
    makeTree(path, 'kopias');
    const { snapshotId } = await backupVolume({
      ...options(path),
      ...upload,
      sourcePod: 'kopia-0',
      uid: 'pvb-kopia',
    });
    const client = { username: 'default', hostname: 'default' };
    const kopia = new Kopia(PASSWORD).connect(join(root, 'repo'), client);
    const listed = kopia.json<
      { id: string; source: { path: string }; tags: Record<string, string>; pins: string[] }[]
    >('snapshot', 'list', '--all');
    expect(listed.find(({ id }) => id === snapshotId)).toMatchObject({
      source: { path: 'snapshot-pod-volume/kopia/app/kopia-0/data' },
      tags: { 'snapshot-requester': 'snapshot-pod-volume', 'snapshot-uploader': 'kopia' },
      pins: ['velero-pin'],
    });
    kopia.run('snapshot', 'restore', snapshotId, join(root, 'by-kopia'));
    assertSameTree(path, join(root, 'by-kopia'));
  });

  it('under a new pod name is not read again where the PVC is the same', async () => {
    const path = makeVolume({ 'a/one': 'x'.repeat(10_000), two: 'y'.repeat(20_000) });
    const first = await backupVolume({ ...options(path), ...upload, sourcePod: 'old', uid: 'd-1' });
    const missing = '0'.repeat(32);
    const second = await backupVolume({
      ...options(path),
      ...upload,
      sourcePod: 'new',
      uid: 'd-2',
      parents: () => Promise.resolve({ more: [missing, first.snapshotId] }),
    });
    expect(second).toMatchObject({ totalBytes: 30_000, incrementalBytes: 0 });
    const [snapshot] = await snapshotsOf('new');
    expect(snapshot?.stats).toMatchObject({ cachedFiles: 2, nonCachedFiles: 0 });
  });

  it('builds on the snapshot that its CR names, or on none', async () => {
    const path = makeVolume({ one: 'x'.repeat(10_000), two: 'y'.repeat(20_000) });
    const move = { ...options(path), ...upload, sourcePod: 'typed' };
    const first = await backupVolume({ ...move, uid: 't-1' });
    await backupVolume({ ...move, uid: 't-2', parent: false });
    await backupVolume({ ...move, uid: 't-3', parent: '0'.repeat(32) });
    await backupVolume({ ...move, sourcePod: 'elsewhere', uid: 't-4', parent: first.snapshotId });
    await backupVolume({ ...move, uid: 't-5' });
    const cached = async (pod: string): Promise<number[]> =>
      (await snapshotsOf(pod)).map(({ stats }) => stats.cachedFiles).sort();
    expect(await cached('typed')).toEqual([0, 0, 0, 2]);
    expect(await cached('elsewhere')).toEqual([2]);
  });

  it('is read again where it is in memory: files that are mapped there change without another time', async () => {
    const path = fs.mkdtempSync('/dev/shm/longshore-');
    try {
      fs.writeFileSync(join(path, 'mapped'), 'AAAA');
      fs.utimesSync(join(path, 'mapped'), 1_700_000_000, 1_700_000_000);
      const move = { ...options(path), ...upload, sourcePod: 'memory' };
      const first = await backupVolume({ ...move, uid: 'm-1' });
      const parents = (): Promise<Parents> => Promise.resolve({ more: [first.snapshotId] });
      fs.writeFileSync(join(path, 'mapped'), 'BBBB');
      fs.utimesSync(join(path, 'mapped'), 1_700_000_000, 1_700_000_000);
      const second = await backupVolume({ ...move, uid: 'm-2', parents });
      expect(second).toMatchObject({ totalBytes: 4, incrementalBytes: 4 });
    } finally {
      fs.rmSync(path, { recursive: true });
    }
  });

  it('takes no incomplete snapshot for a parent, and reads all when a parent is lost', async () => {
    const path = makeVolume({ one: 'x'.repeat(10_000) });
    const incomplete = saveSnapshot(repository, {
      source: podVolumeSource('app', 'gone', 'data'),
      description: '',
      startTimeNs: 1n,
      endTimeNs: 2n,
      stats: {
        totalSize: 0,
        excludedTotalSize: 0,
        fileCount: 0,
        cachedFiles: 0,
        nonCachedFiles: 0,
        dirCount: 0,
        excludedFileCount: 0,
        excludedDirCount: 0,
        ignoredErrorCount: 0,
        errorCount: 0,
      },
      incomplete: 'checkpoint',
    });
    // Its root is nowhere in the repository.
    const lost = saveSnapshot(repository, {
      source: podVolumeSource('app', 'gone', 'data'),
      description: '',
      startTimeNs: 3n,
      endTimeNs: 4n,
      stats: {
        totalSize: 0,
        excludedTotalSize: 0,
        fileCount: 0,
        cachedFiles: 0,
        nonCachedFiles: 0,
        dirCount: 0,
        excludedFileCount: 0,
        excludedDirCount: 0,
        ignoredErrorCount: 0,
        errorCount: 0,
      },
      rootEntry: {
        name: 'x',
        type: 'd',
        mode: 0o755,
        mtimeNs: 1n,
        uid: 0,
        gid: 0,
        size: 0,
        objectId: `k${'ab'.repeat(16)}` as never,
      },
    });
    await repository.flush();
    const result = await backupVolume({
      ...options(path),
      ...upload,
      sourcePod: 'reads-all',
      uid: 'r-1',
      parents: () => Promise.resolve({ more: [incomplete, lost] }),
    });
    expect(result).toMatchObject({ totalBytes: 10_000, incrementalBytes: 10_000 });
  });

  it('is not mixed up with another one of its pod that is recorded under the same path', async () => {
    // Same names, sizes and times: only the bytes differ.
    const claim = makeVolume({ config: 'of the claim' });
    const scratch = makeVolume({ config: 'of the other' });
    const both = { ...upload, sourcePod: 'twins' };
    const first = await backupVolume({ ...options(claim), ...both, uid: 't-1' });
    const isOfScratch = { isParent: () => false };
    const second = await backupVolume({
      ...options(scratch),
      ...both,
      uid: 't-2',
      parents: () => Promise.resolve(isOfScratch),
    });
    for (const [{ snapshotId }, text] of [
      [first, 'of the claim'],
      [second, 'of the other'],
    ] as const) {
      const target = makeVolume({});
      await restoreVolume({ ...options(target), snapshotId });
      expect(fs.readFileSync(join(target, 'config'), 'utf8')).toBe(text);
    }
  });

  it('goes on with a chain of snapshots that only Velero made, and not with others', async () => {
    const path = makeVolume({ one: 'x'.repeat(10_000) });
    const source = podVolumeSource('app', 'chain', 'data');
    await backUp(repository, path, { source, tags: { 'snapshot-requester': 'somebody' } });
    const first = await backupVolume({ ...options(path), ...upload, sourcePod: 'chain', uid: '1' });
    expect(first.incrementalBytes).toBe(10_000);
    const tags = { 'snapshot-requester': 'snapshot-pod-volume', 'snapshot-uploader': 'kopia' };
    const other = podVolumeSource('app', 'veleros', 'data');
    await backUp(repository, path, { source: other, tags });
    const next = await backupVolume({
      ...options(path),
      ...upload,
      sourcePod: 'veleros',
      uid: '2',
    });
    expect(next.incrementalBytes).toBe(0);
  });

  it.each([
    ['its own', { [UPLOAD_TAG]: 'k-1' }, { isParent: () => false }],
    ["that of Velero's mover", {}, {}],
  ])('goes on from a checkpoint: %s', async (whose, tags, parents) => {
    const path = makeVolume({ one: 'x'.repeat(10_000), two: 'y'.repeat(10_000) });
    const { snapshot } = await backUp(repository, path, { source: podVolumeSource('app', 'any', whose) }); // prettier-ignore
    const source = podVolumeSource('app', `killed ${whose}`, 'data');
    saveSnapshot(repository, { ...snapshot, source, tags, incomplete: 'checkpoint' });
    await repository.flush();
    const result = await backupVolume({
      ...options(path),
      ...upload,
      sourcePod: `killed ${whose}`,
      uid: 'k-1',
      parents: () => Promise.resolve(parents),
    });
    expect(result).toMatchObject({ totalBytes: 20_000, incrementalBytes: 0 });
  });

  it('that is unmounted while it is read leaves no snapshot', async () => {
    const path = makeVolume({ one: 'x' });
    const before: string[] = [];
    const backup = backupVolume({
      ...options(path),
      ...upload,
      sourcePod: 'unmounted',
      assertUsable: (when) => {
        before.push(when);
        return Promise.resolve();
      },
      parents: () => {
        // Runs after the mover has opened the volume for the first time.
        fs.renameSync(path, `${path}-away`);
        fs.mkdirSync(path);
        return Promise.resolve({});
      },
    });
    await expect(backup).rejects.toMatchObject({
      code: 'VOLUME_GONE',
      message: `the volume was unmounted or removed while it was being read: ${path}`,
    });
    expect(before).toEqual(['before']);
    expect(await snapshotsOf('unmounted')).toEqual([]);
  });

  it.skipIf(!canMount)('whose mount goes away while it is read leaves no snapshot', async () => {
    const path = makeVolume({});
    execFileSync('mount', ['--bind', makeVolume({ one: 'x' }), path]);
    const backup = backupVolume({
      ...options(path),
      ...upload,
      sourcePod: 'umounted',
      assertUsable: (when) => {
        expect(when).toBe('before');
        return Promise.resolve();
      },
      parents: () => {
        execFileSync('umount', ['-l', path]);
        return Promise.resolve({});
      },
    });
    await expect(backup).rejects.toMatchObject({ code: 'VOLUME_GONE' });
    fs.rmdirSync(path);
    expect(await snapshotsOf('umounted')).toEqual([]);
  });

  it('whose pod is gone when all was read leaves no snapshot', async () => {
    const path = makeVolume({ one: 'x' });
    const backup = backupVolume({
      ...options(path),
      ...upload,
      sourcePod: 'deleted',
      assertUsable: (when) =>
        when === 'after' ? Promise.reject(new Error('the pod is gone')) : Promise.resolve(),
    });
    await expect(backup).rejects.toThrow('the pod is gone');
    expect(await snapshotsOf('deleted')).toEqual([]);
  });

  it('is found as an earlier mover stored it, though its pod is gone by now', async () => {
    const path = makeVolume({ one: 'x' });
    const move = { ...options(path), ...upload, sourcePod: 'finished', uid: 'f-1' };
    const first = await backupVolume(move);
    const again = await backupVolume({
      ...move,
      assertUsable: () => Promise.reject(new Error('the pod is gone')),
    });
    expect(again.snapshotId).toBe(first.snapshotId);
  });

  it('whose file is removed between the listing and the reading is stored without it', async () => {
    const path = makeVolume({ gone: 'x'.repeat(1000), there: 'y' });
    const pool = repository.dataPath?.pool;
    if (!pool) throw new Error('no pool');
    const readFiles = pool.readFiles.bind(pool);
    pool.readFiles = (...parameters) => {
      fs.rmSync(join(path, 'gone'), { force: true });
      return readFiles(...parameters);
    };
    try {
      await backupVolume({ ...options(path), ...upload, sourcePod: 'vanishing' });
    } finally {
      pool.readFiles = readFiles;
    }
    const [stored] = await snapshotsOf('vanishing');
    expect(stored?.rootEntry?.summary).toMatchObject({ files: 1, numFailed: 0 });
  });

  it.each([
    ['by its settings', { config: { 'longshore.ignoreUnreadable': 'true' } }],
    ['by the environment', { ignoreUnreadable: true }],
  ])(
    'of which a file cannot be read is stored without it where that is asked for %s',
    async (how, asked) => {
      const path = makeVolume({ bad: 'x'.repeat(1000), good: 'y' });
      const pool = repository.dataPath?.pool;
      if (!pool) throw new Error('no pool');
      const readFiles = pool.readFiles.bind(pool);
      pool.readFiles = async (files, slab) => {
        const reads = await readFiles(files, slab);
        const error = { code: 'EIO', message: 'EIO: the disk is broken' };
        return reads.map((read, i) => (i === 0 ? { ...read, length: 0, error } : read));
      };
      const sourcePod = `partly ${how}`;
      try {
        await backupVolume({ ...options(path), ...upload, sourcePod, ...asked });
      } finally {
        pool.readFiles = readFiles;
      }
      const [snapshot] = await snapshotsOf(sourcePod);
      expect(snapshot?.stats).toMatchObject({ ignoredErrorCount: 1, errorCount: 0 });
    },
  );

  it('with a wrong setting is refused', async () => {
    const path = makeVolume({});
    const config = { 'longshore.ignoreUnreadable': 'perhaps' };
    await expect(backupVolume({ ...options(path), ...upload, config })).rejects.toThrow(
      /longshore.ignoreUnreadable is "perhaps", not true or false/,
    );
  });

  it('is never written to by its backup', async () => {
    const path = makeVolume({ '.velero/old-uid': '', 'a/file': 'x' });
    const before = fs.statSync(path).mtimeMs;
    const { snapshotId } = await backupVolume({ ...options(path), ...upload, sourcePod: 'source' });
    expect(fs.readdirSync(path).sort()).toEqual(['.velero', 'a']);
    expect(fs.statSync(path).mtimeMs).toBe(before);
    // The snapshot has the whole volume: no file is skipped silently.
    const target = makeVolume({});
    await restoreVolume({ ...options(target), snapshotId });
    assertSameTree(path, target);
  });
});

describe('a restored volume that a pod waits for', () => {
  let snapshotId: string;
  let source: string;
  beforeAll(async () => {
    source = makeVolume({ '.velero/old-uid': '', 'app/.velero/inside': 'kept', file: 'x' });
    fs.mkdirSync(join(source, '.velero/more'));
    fs.chownSync(source, process.getuid?.() === 0 ? 1234 : (process.getuid?.() ?? 0), -1 >>> 0);
    fs.chmodSync(source, 0o2770);
    fs.utimesSync(source, 1_600_000_000, 1_600_000_000.5);
    const move = { ...options(source), ...upload, sourcePod: 'restored', uid: 'restored-1' };
    ({ snapshotId } = await backupVolume(move));
  });

  const doneMark = { name: UID, mayBeThere: false };
  const bootId = fs.readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  const rootOf = (target: string): string => {
    const { ino, birthtimeNs } = fs.statSync(target, { bigint: true });
    return `${ino} ${birthtimeNs}`;
  };
  const isWaiting = (target: string): boolean => !fs.existsSync(join(target, '.velero', UID));

  it('has its mark, its data, and the attributes of its root', async () => {
    const target = makeVolume({ 'foreign file': 'kept', file: 'overwritten' });
    const seen: [string, string[]][] = [];
    await restoreVolume({
      ...options(target),
      snapshotId,
      doneMark,
      assertUsable: (when) => {
        seen.push([when, fs.readdirSync(target).sort()]);
        return Promise.resolve();
      },
    });
    expect(seen).toEqual([
      ['before', ['file', 'foreign file']],
      // The restore skips `.velero`.
      ['after', ['app', 'file', 'foreign file']],
    ]);
    expect(fs.readdirSync(join(target, '.velero'))).toEqual([UID]);
    expect(fs.readFileSync(join(target, 'app/.velero/inside'), 'utf8')).toBe('kept');
    expect(fs.readFileSync(join(target, 'foreign file'), 'utf8')).toBe('kept');
    expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe('x');
    const [is, was] = [fs.statSync(target), fs.statSync(source)];
    expect([is.mode, is.uid, is.gid, is.mtimeMs]).toEqual([
      was.mode,
      was.uid,
      was.gid,
      was.mtimeMs,
    ]);
  });

  it('of another restore has the mark of this one afterwards', async () => {
    const target = makeVolume({});
    const again = { ...options(target), snapshotId };
    await restoreVolume({ ...again, doneMark: { ...doneMark, name: 'first-restore' } });
    let marks: string[] = [];
    await restoreVolume({
      ...again,
      doneMark,
      assertUsable: (when) => {
        if (when === 'after') marks = fs.readdirSync(target);
        return Promise.resolve();
      },
    });
    expect(marks).not.toContain('.velero');
    expect(fs.readdirSync(join(target, '.velero'))).toEqual([UID]);
  });

  it('with a link in the place of the marks: nothing is written through it', async () => {
    const target = makeVolume({});
    const outside = makeVolume({ kept: 'kept' });
    const evil = makeVolume({ file: 'x' });
    fs.symlinkSync(outside, join(evil, '.velero'));
    fs.symlinkSync(outside, join(target, '.velero'));
    const move = { ...options(evil), ...upload, sourcePod: 'evil', uid: 'evil-1' };
    const { snapshotId } = await backupVolume(move);
    await restoreVolume({ ...options(target), snapshotId, doneMark });
    expect(fs.readdirSync(outside)).toEqual(['kept']);
    expect(fs.lstatSync(join(target, '.velero')).isDirectory()).toBe(true);
    expect(isWaiting(target)).toBe(false);
  });

  it('has no mark after a failure', async () => {
    const target = makeVolume({ '.velero/old-uid': '' });
    fs.mkdirSync(join(target, 'file'));
    const restore = restoreVolume({ ...options(target), snapshotId, doneMark });
    await expect(restore).rejects.toThrow(/a directory is in the way/);
    expect(fs.existsSync(join(target, '.velero'))).toBe(false);
  });

  it('has no mark after a cancel, also one at the last moment', async () => {
    const target = makeVolume({});
    const abort = new AbortController();
    const restore = restoreVolume({
      ...options(target),
      signal: abort.signal,
      snapshotId,
      doneMark,
      assertUsable: (when) => {
        if (when === 'after') abort.abort(new CanceledError('user'));
        return Promise.resolve();
      },
    });
    await expect(restore).rejects.toMatchObject({ code: 'CANCELED' });
    expect(fs.existsSync(join(target, 'file'))).toBe(true);
    expect(fs.existsSync(join(target, '.velero'))).toBe(false);
  });

  it('that cannot take the mark fails, and says so', async () => {
    const target = makeVolume({});
    const restore = restoreVolume({
      ...options(target),
      snapshotId,
      doneMark: { ...doneMark, name: 'x'.repeat(300) },
    });
    await expect(restore).rejects.toMatchObject({
      code: 'NO_DONE_MARK',
      message: expect.stringMatching(
        /^all data were restored, but the file \.velero\/x+ /,
      ) as string,
    });
  });

  it('that is replaced while it is written has no mark', async () => {
    const target = makeVolume({});
    const pool = repository.dataPath?.pool;
    if (!pool) throw new Error('no pool');
    const sync = pool.syncFilesystem.bind(pool);
    pool.syncFilesystem = async (descriptor) => {
      const isDone = await sync(descriptor);
      fs.renameSync(target, `${target}-away`);
      fs.mkdirSync(target);
      return isDone;
    };
    try {
      await expect(
        restoreVolume({ ...options(target), snapshotId, doneMark }),
      ).rejects.toMatchObject({ code: 'VOLUME_GONE' });
    } finally {
      pool.syncFilesystem = sync;
    }
    expect(fs.readdirSync(target)).toEqual([]);
    expect(fs.existsSync(join(`${target}-away`, '.velero'))).toBe(false);
  });

  it.skipIf(!canMount)('that turns read-only at the end fails, and says so', async () => {
    using disk = mountSmallDisk(1 << 20);
    const restore = restoreVolume({
      ...options(disk.path),
      snapshotId,
      doneMark,
      assertUsable: (when) => {
        if (when === 'after') execFileSync('mount', ['-o', 'remount,ro', disk.path]);
        return Promise.resolve();
      },
    });
    await expect(restore).rejects.toMatchObject({
      code: 'NO_DONE_MARK',
      message: expect.stringMatching(
        /could not be written: the file system is read-only; /,
      ) as string,
    });
    expect(fs.existsSync(join(disk.path, '.velero'))).toBe(false);
  });

  it.skipIf(!canMount)('that is full before its data are there has no mark', async () => {
    using disk = mountSmallDisk(1 << 20);
    disk.fill();
    const restore = restoreVolume({ ...options(disk.path), snapshotId, doneMark });
    await expect(restore).rejects.toMatchObject({ code: 'TARGET_FULL' });
    expect(fs.existsSync(join(disk.path, '.velero'))).toBe(false);
  });

  it.each([
    ['false', false],
    ['true', true],
  ])('has holes with WriteSparseFiles=%s: %s', async (WriteSparseFiles, isSparse) => {
    const zeros = makeVolume({ zeros: '\0'.repeat(16 << 20) });
    const move = { ...options(zeros), ...upload, sourcePod: 'zeros', uid: `z-${WriteSparseFiles}` };
    const stored = await backupVolume(move);
    const target = makeVolume({});
    const config = { WriteSparseFiles };
    await restoreVolume({ ...options(target), config, snapshotId: stored.snapshotId, doneMark });
    const { size, blocks } = fs.statSync(join(target, 'zeros'));
    expect(size).toBe(16 << 20);
    expect(blocks * 512 < size / 2).toBe(isSparse);
  });

  it('is left alone where an earlier mover finished it: its pod may be running', async () => {
    const target = makeVolume({});
    fs.mkdirSync(join(target, '.velero'));
    fs.writeFileSync(join(target, '.velero', UID), '');
    const refuse = (): Promise<never> => Promise.reject(new Error('not asked'));
    const again = {
      ...options(target),
      snapshotId,
      doneMark: { ...doneMark, mayBeThere: true },
      assertUsable: refuse,
    };
    expect((await restoreVolume(again)).totalBytes).toBeGreaterThan(0);
    expect(fs.existsSync(join(target, 'file'))).toBe(false);
    // A first mover does not believe it: the mark may be of anybody.
    await restoreVolume({ ...again, doneMark, assertUsable: () => Promise.resolve() });
    expect(fs.existsSync(join(target, 'file'))).toBe(true);
  });

  it('is left alone where the mark of an earlier mover was found, and that is told late', async () => {
    const target = makeVolume({ file: 'of the application' });
    const answers = [false, true];
    const again = restoreVolume({
      ...options(target),
      snapshotId,
      lateMs: 10,
      doneMark: {
        ...doneMark,
        mayBeThere: true,
        wasTaken: () => Promise.resolve(answers.shift() ?? false),
      },
      assertUsable: () => Promise.reject(new Error('not asked')),
    });
    expect((await again).totalBytes).toBeGreaterThan(0);
    expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe('of the application');
    expect(answers).toEqual([]);
  });

  it('tells that all data are there when only the mark is left to be made', async () => {
    const target = makeVolume({});
    const seen: string[][] = [];
    const move = { ...options(target), snapshotId };
    const onRestored = ({ bootId: boot, root = '' }: WrittenVolume): Promise<void> => {
      seen.push([
        ...[boot, root],
        ...fs.readdirSync(target).sort(),
        ...fs.readdirSync(join(target, '.velero')),
      ]);
      return seen.length === 1 ? Promise.reject(new Error('not now')) : Promise.resolve();
    };
    const refused = restoreVolume({ ...move, doneMark: { ...doneMark, onRestored } });
    await expect(refused).rejects.toThrow(/^not now$/);
    expect(isWaiting(target)).toBe(true);
    await restoreVolume({ ...move, doneMark: { ...doneMark, onRestored } });
    expect(isWaiting(target)).toBe(false);
    expect(seen).toEqual([0, 1].map(() => [bootId, rootOf(target), '.velero', 'app', 'file']));
    expect(fs.statSync(target).mtimeMs).toBe(fs.statSync(source).mtimeMs);
  });

  it.each([
    ['whose mark was taken, which its node tells late', () => undefined],
    [
      'whose mark was not made any more',
      (target: string) => {
        fs.mkdirSync(join(target, '.velero'));
      },
    ],
  ])('gets at most its mark again when an earlier mover restored it: one %s', async (_what, be) => {
    const target = makeVolume({ file: 'of the application' });
    be(target);
    fs.chmodSync(target, 0o2570);
    const told: WrittenVolume[] = [];
    const restored = { bootId: 'before the node was started again', root: rootOf(target) };
    await restoreVolume({
      ...options(target),
      snapshotId,
      lateMs: 10,
      doneMark: {
        ...doneMark,
        restored,
        wasTaken: () => Promise.resolve(false),
        onRestored: (written) => {
          told.push(written);
          return Promise.resolve();
        },
      },
    });
    expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe('of the application');
    expect(fs.readdirSync(target).sort()).toEqual(['.velero', 'file']);
    expect(isWaiting(target)).toBe(false);
    // The application may have given it another one than the snapshot has.
    expect(fs.statSync(target).mode & 0o7777).toBe(0o2570);
    expect(told).toEqual([]);
  });

  const isRestoredAgain = async (target: string, restored: WrittenVolume): Promise<boolean> => {
    const move = { ...options(target), snapshotId, lateMs: 10 };
    await restoreVolume({ ...move, doneMark: { ...doneMark, restored } });
    return fs.existsSync(join(target, 'app'));
  };
  const earlier = 'before the node was started again';

  it.each<[string, (target: string) => WrittenVolume, boolean]>([
    ['in this boot', () => ({ bootId }), false],
    ['in this boot, with another root', () => ({ bootId, root: '2 1600000000' }), false],
    ['before, with the same root', (target) => ({ bootId: earlier, root: rootOf(target) }), false],
    ['before, with another root', () => ({ bootId: earlier, root: '2 1600000000' }), true],
    ['before, with another root of a claim', () => ({ bootId: earlier, root: '2 1600000000', isOfClaim: true }), true], // prettier-ignore
    ['before, with a root that was not noted', () => ({ bootId: earlier, isOfClaim: false }), true],
    ['before, with a root that was not noted, of a claim', () => ({ bootId: earlier, isOfClaim: true }), false], // prettier-ignore
    ['by an earlier version', () => ({ bootId: earlier }), true],
  ])('that was restored %s', async (_what, be, isAgain) => {
    const target = makeVolume({ file: 'of the application' });
    expect(await isRestoredAgain(target, be(target))).toBe(isAgain);
    const text = isAgain ? 'x' : 'of the application';
    expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe(text);
    expect(isWaiting(target)).toBe(false);
  });

  it.skipIf(!canMount)(
    'that is not mounted yet is not asked what it has, and its note stays',
    async () => {
      const own = join(makeVolume({}), 'pod-uid/volumes/kubernetes.io~csi/pv/mount');
      fs.mkdirSync(own, { recursive: true });
      const target = makeVolume({});
      execFileSync('mount', ['--bind', own, target]);
      try {
        const lost: string[] = [];
        const restored = { bootId: earlier, root: '2 1600000000', isOfClaim: true };
        const onLost = (): Promise<void> => Promise.resolve(void lost.push('lost'));
        const move = { ...options(target), snapshotId };
        await expect(
          restoreVolume({ ...move, doneMark: { ...doneMark, restored, onLost } }),
        ).rejects.toMatchObject({ code: 'VOLUME_GONE' });
        expect(lost).toEqual([]);
      } finally {
        execFileSync('umount', [target]);
      }
    },
  );

  it('that is in memory is restored again once its node was started again', async () => {
    const target = fs.mkdtempSync('/dev/shm/longshore-');
    try {
      expect(await isRestoredAgain(target, { bootId, isOfClaim: true })).toBe(false);
      fs.rmSync(join(target, '.velero'), { recursive: true });
      expect(await isRestoredAgain(target, { bootId: earlier, isOfClaim: true })).toBe(true);
      expect(fs.readdirSync(target).sort()).toEqual(['.velero', 'app', 'file']);
    } finally {
      fs.rmSync(target, { recursive: true });
    }
  });

  it.each([
    ['and the pod gets no mark', { doneMark }],
    ['also where no pod waits', {}],
  ])('of which only a checkpoint is named is refused, %s', async (_, mark) => {
    const target = makeVolume({ file: 'as it was' });
    const [whole] = await listSnapshots(repository);
    const checkpoint = saveSnapshot(repository, {
      ...(whole as Snapshot),
      incomplete: 'checkpoint',
    });
    await repository.flush();
    const restore = restoreVolume({ ...options(target), snapshotId: checkpoint, ...mark });
    await expect(restore).rejects.toMatchObject({
      code: 'DAMAGED_SNAPSHOT',
      message: `snapshot ${checkpoint} is incomplete: checkpoint`,
    });
    expect(fs.readdirSync(target)).toEqual(['file']);
    expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe('as it was');
  });

  it('whose pod is gone is not touched', async () => {
    const target = makeVolume({ '.velero/old-uid': '' });
    const restore = restoreVolume({
      ...options(target),
      snapshotId,
      doneMark,
      assertUsable: () => Promise.reject(new Error('the pod is gone')),
    });
    await expect(restore).rejects.toThrow('the pod is gone');
    expect(fs.readdirSync(target)).toEqual(['.velero']);
  });
});
