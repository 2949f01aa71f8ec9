import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { CanceledError, messageOf, silentLogger } from '../../src/base/index.ts';
import type { ThreadPool } from '../../src/volume-files/index.ts';
import {
  backupVolume,
  restoreVolume,
  restoreVolumeInPlace,
  volumeSource,
} from '../../src/mover/index.ts';
import type { Progress } from '../../src/mover/index.ts';
import { UPLOAD_TAG } from '../../src/mover/snapshot-source.ts';
import { type WaitsFor, watchProgress } from '../../src/mover/progress.ts';
import type { Repository } from '../../src/repository/index.ts';
import {
  getDefinedPolicy,
  getSnapshot,
  listSnapshots,
  saveSnapshot,
} from '../../src/snapshot/index.ts';
import { createTest, openTest } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const root = fs.mkdtempSync(join(tmpdir(), 'longshore-mover-test-'));
const source = volumeSource('app', 'data');
const statsOfNothing = {
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
};

describe('a volume', () => {
  let repository: Repository;
  const volume = join(root, 'volume');
  beforeAll(async () => {
    await createTest(join(root, 'repo'));
    repository = await openTest(join(root, 'repo'), { threads: true });
    makeTree(volume, 'mover');
  });
  afterAll(async () => {
    await repository.close();
    fs.rmSync(root, { recursive: true, force: true });
  });

  const options = (progress: Progress[] = []) => ({
    repository,
    path: volume,
    isBlock: false,
    logger: silentLogger,
    signal: new AbortController().signal,
    config: {},
    onProgress: (now: Progress) => void progress.push(now),
    progressIntervalMs: 10,
    stallMs: 60_000,
  });
  const upload = { sourceNamespace: 'app', sourcePvc: 'data', operationId: 'du-1', uid: 'u-1' };

  it('is recorded as Velero records it: source, tags, pin, policy; progress ends at the total', async () => {
    const seen: Progress[] = [];
    const result = await backupVolume({ ...options(seen), ...upload });
    const [snapshot] = await listSnapshots(repository, { source });
    expect(snapshot).toMatchObject({
      id: result.snapshotId,
      description: 'Kopia Uploader',
      pins: ['velero-pin'],
      source: {
        host: 'default',
        userName: 'default',
        path: 'snapshot-data-upload-download/kopia/app/data',
      },
      tags: {
        'snapshot-requester': 'snapshot-data-upload-download',
        'snapshot-uploader': 'kopia',
        'velero.io/async-operation-id': 'du-1',
        [UPLOAD_TAG]: 'u-1',
      },
    });
    const policy = await getDefinedPolicy(repository, source);
    expect(policy?.policy).toMatchObject({
      retention: { keepLatest: 2 ** 31 - 1, keepAnnual: 2 ** 31 - 1 },
      compression: { compressorName: 'none' },
      scheduling: { manual: true },
      errorHandling: { ignoreUnknownTypes: true },
    });
    expect(seen.map(({ doneBytes }) => doneBytes)).toEqual(
      seen.map(({ doneBytes }) => doneBytes).toSorted((a, b) => a - b),
    );
    expect(seen.at(-1)).toEqual({ totalBytes: result.totalBytes, doneBytes: result.totalBytes });
    for (const { doneBytes, totalBytes } of seen) {
      expect(totalBytes).toBeGreaterThan(0);
      expect(totalBytes).toBeGreaterThanOrEqual(doneBytes);
      // For a directory without an earlier backup there is no estimate: only found bytes count.
      expect(totalBytes).toBeLessThanOrEqual(result.totalBytes);
    }

    const target = join(root, 'restored');
    fs.mkdirSync(target);
    const restored = await restoreVolume({
      ...options(),
      path: target,
      snapshotId: result.snapshotId,
    });
    expect(restored.totalBytes).toBe(result.totalBytes);
    expect(spawnSync('diff', ['-r', '--no-dereference', volume, target]).status).toBe(0);
  });

  it('tells how many entries lack attributes', async () => {
    const { snapshotId } = await backupVolume({ ...options(), ...upload, uid: 'u-lacking' });
    const target = join(root, 'lacking');
    fs.mkdirSync(target);
    const pool = repository.dataPath?.pool ?? expect.fail();
    const setAttributes = pool.setAttributes.bind(pool);
    pool.setAttributes = () => Promise.resolve(1);
    try {
      const { note, firstLacking } = await restoreVolume({
        ...options(),
        path: target,
        snapshotId,
      });
      expect(note).toMatch(/^\d+ entr\w+ lacks? attributes .*: the owner of \d+$/);
      expect(firstLacking.length).toBeGreaterThan(0);
      expect(firstLacking.every((text) => text.endsWith(' (owner)'))).toBe(true);
    } finally {
      pool.setAttributes = setAttributes;
    }
  });

  it("that Velero's block mover has stored is restored nowhere: the volume stays as it is", async () => {
    const { snapshotId } = await backupVolume({ ...options(), ...upload, uid: 'u-block' });
    const stored = await getSnapshot(repository, snapshotId);
    const tags = { ...stored.tags, 'snapshot-uploader': 'velero-block' };
    const id = saveSnapshot(repository, { ...stored, tags });
    await repository.flush();
    const target = join(root, 'untouched');
    fs.mkdirSync(target);
    fs.writeFileSync(join(target, 'own'), 'x');
    const restore = { ...options(), path: target, snapshotId: id };
    const onDone = (): Promise<void> => Promise.resolve();
    const usedByOther = new AbortController().signal;
    const inPlace = { usedByOther, dryRun: false, keepExtra: false, onDone };
    const code = 'BLOCK_MOVER_SNAPSHOT';
    await expect(restoreVolume(restore)).rejects.toMatchObject({ code });
    await expect(restoreVolumeInPlace({ ...restore, ...inPlace })).rejects.toMatchObject({ code });
    expect(fs.readdirSync(target)).toEqual(['own']);
  });

  it('is stored once for one DataUpload, however often a mover is started for it', async () => {
    const move = { ...upload, sourcePvc: 'once', uid: 'u-once' };
    const first = await backupVolume({ ...options(), ...move });
    const seen: Progress[] = [];
    const again = await backupVolume({ ...options(seen), ...move });
    expect(again).toEqual({ ...first, incrementalBytes: 0 });
    expect(seen.at(-1)).toEqual({ totalBytes: first.totalBytes, doneBytes: first.totalBytes });
    // The next backup of the volume has a DataUpload of its own.
    const next = await backupVolume({ ...options(), ...move, uid: 'u-next' });
    const found = await listSnapshots(repository, { source: volumeSource('app', 'once') });
    expect(found.map(({ id }) => id)).toEqual([first.snapshotId, next.snapshotId]);
  });

  it('of which an earlier mover stored a part only is stored to the end', async () => {
    const move = { ...upload, sourcePvc: 'part', uid: 'u-part' };
    const source = volumeSource('app', 'part');
    saveSnapshot(repository, {
      source,
      description: '',
      startTimeNs: 1n,
      endTimeNs: 2n,
      stats: statsOfNothing,
      incomplete: 'checkpoint',
      tags: { [UPLOAD_TAG]: move.uid },
    });
    await repository.flush();
    const { snapshotId } = await backupVolume({ ...options(), ...move });
    const found = await listSnapshots(repository, { source });
    expect(found.find(({ id }) => id === snapshotId)?.incomplete).toBeUndefined();
  });

  it('that is canceled leaves part of a snapshot with no pin, and says that it was', async () => {
    const abort = new AbortController();
    abort.abort(new Error('enough'));
    const canceled = backupVolume({
      ...options(),
      ...upload,
      sourcePvc: 'canceled',
      signal: abort.signal,
    });
    await expect(canceled).rejects.toThrow(/canceled|enough/);
    for (const snapshot of await listSnapshots(repository, {
      source: volumeSource('app', 'canceled'),
    })) {
      expect(snapshot.incomplete).toBeTruthy();
      expect(snapshot.pins ?? []).toEqual([]);
    }
  });

  it('that is not there, or of the other mode, is an error that says so', async () => {
    await expect(backupVolume({ ...options(), ...upload, path: '/nowhere' })).rejects.toThrow(
      /the volume does not exist: \/nowhere/,
    );
    await expect(backupVolume({ ...options(), ...upload, isBlock: true })).rejects.toThrow(
      /is not a block device/,
    );
  });

  it.each([
    ['ParallelFilesUpload', 'many', /"many", not a whole number/],
    ['WriteSparseFiles', 'perhaps', /"perhaps", not true or false/],
  ])('with setting %s=%s is refused', async (key, value, message) => {
    const config = { [key]: value };
    const task = key.startsWith('P')
      ? backupVolume({ ...options(), ...upload, config })
      : restoreVolume({ ...options(), config, snapshotId: '0'.repeat(32) });
    await expect(task).rejects.toThrow(message);
  });

  const pool = (): ThreadPool => repository.dataPath?.pool as ThreadPool;

  it('whose files are never read to the end is given up, also when the upload does not end by itself', async () => {
    const readFiles = pool().readFiles.bind(pool());
    let asked = 0;
    pool().readFiles = () => {
      asked++;
      return new Promise(() => undefined);
    };
    try {
      const stuck = backupVolume({
        ...options(),
        ...upload,
        sourcePvc: 'stuck',
        stallMs: 2000,
        graceMs: 200,
      });
      await expect(stuck).rejects.toMatchObject({
        code: 'STALLED',
        message: expect.stringMatching(
          /nothing has moved for \d+ s: the volume at \S+ hangs/,
        ) as string,
      });
      expect(asked).toBeGreaterThan(0);
      const found = await listSnapshots(repository, { source: volumeSource('app', 'stuck') });
      expect(found).toEqual([]);
    } finally {
      pool().readFiles = readFiles;
    }
  });

  it('that is canceled while a file is never read to the end is left behind', async () => {
    const readFiles = pool().readFiles.bind(pool());
    const abort = new AbortController();
    pool().readFiles = () => {
      abort.abort(new CanceledError('user'));
      return new Promise(() => undefined);
    };
    try {
      const stuck = backupVolume({
        ...options(),
        ...upload,
        sourcePvc: 'stuck',
        signal: abort.signal,
        graceMs: 200,
      });
      await expect(stuck).rejects.toMatchObject({ code: 'CANCELED' });
    } finally {
      pool().readFiles = readFiles;
    }
  });

  it('of nothing but empty files, links and directories is not stalled while they come', async () => {
    const empty = join(root, 'empty');
    for (let i = 0; i < 30; i++) {
      fs.mkdirSync(join(empty, `d${i}`), { recursive: true });
      fs.writeFileSync(join(empty, `d${i}/file`), '');
      fs.symlinkSync('file', join(empty, `d${i}/link`));
    }
    const readDirectory = pool().readDirectory.bind(pool());
    let wait = Promise.resolve();
    // A slow file server: one directory after the other, and all of them take longer than a stall.
    pool().readDirectory = (path, entriesMax) => {
      wait = wait.then(() => sleep(200));
      return wait.then(() => readDirectory(path, entriesMax));
    };
    try {
      const result = await backupVolume({
        ...options(),
        ...upload,
        sourcePvc: 'empty',
        path: empty,
        stallMs: 3000,
      });
      expect(result.totalBytes).toBe(0);
      expect(result.snapshotId).toMatch(/^[0-9a-f]{32}$/);
    } finally {
      pool().readDirectory = readDirectory;
    }
  });

  it('that waits for the storage is not stalled: requests have time limits of their own', async () => {
    const slow = await openTest(join(root, 'repo'), {
      wrap: (storage) => {
        const putBlob = storage.putBlob.bind(storage);
        storage.putBlob = async (...parameters) => {
          await sleep(1500);
          return putBlob(...parameters);
        };
        return storage;
      },
    });
    try {
      const move = { ...options(), ...upload, repository: slow, sourcePvc: 'slow', stallMs: 500 };
      expect((await backupVolume(move)).snapshotId).toMatch(/^[0-9a-f]{32}$/);
    } finally {
      await slow.close();
    }
  });

  it('of which a part cannot be read: at no moment is there a snapshot that looks whole', async () => {
    const stages: string[] = [];
    const path = join(root, 'repo');
    const watchedRepository = await openTest(path, {
      wrap: (storage) => {
        const putBlob = storage.putBlob.bind(storage);
        storage.putBlob = async (...parameters) => {
          await putBlob(...parameters);
          // As a kill right after this put would leave it.
          const stage = join(root, `stage-${stages.length}`);
          stages.push(stage);
          fs.cpSync(path, stage, { recursive: true });
        };
        return storage;
      },
    });
    const from = watchedRepository.dataPath?.pool as ThreadPool;
    const readFiles = from.readFiles.bind(from);
    from.readFiles = async (files, slab) => {
      const reads = await readFiles(files, slab);
      const error = { code: 'EIO', message: 'EIO: the disk is broken' };
      return reads.map((read, i) => (i === 0 ? { ...read, length: 0, error } : read));
    };
    const move = { ...options(), ...upload, repository: watchedRepository, sourcePvc: 'broken' };
    await expect(backupVolume(move)).rejects.toMatchObject({
      code: 'VOLUME_INCOMPLETE',
      message: expect.stringContaining('the disk is broken') as string,
    });
    await watchedRepository.close();
    expect(stages.length).toBeGreaterThan(2);
    for (const stage of stages) {
      await using left = await openTest(stage);
      const found = await listSnapshots(left, { source: volumeSource('app', 'broken') });
      expect(found.filter(({ incomplete }) => !incomplete)).toEqual([]);
    }
  });
});

describe('a move that is watched', () => {
  afterEach(() => {
    vi.useRealTimers();
  });

  const watch = (waitsFor: WaitsFor) => {
    vi.useFakeTimers();
    const sample = { doneBytes: 0, totalBytes: 1, moved: 0, answers: 0, waitsFor };
    const seen: Progress[] = [];
    const watching = watchProgress(
      {
        signal: new AbortController().signal,
        onProgress: (now) => void seen.push(now),
        progressIntervalMs: 5000,
        stallMs: 15 * 60_000,
        path: '/volume',
      },
      () => sample,
    );
    const ended = watching.run(() => new Promise<never>(() => undefined)).catch(messageOf);
    return { sample, watching, ended };
  };

  it.each([
    ['volume', 15, /^nothing has moved for 9\d\d s: the volume at \/volume hangs/],
    ['storage', 30, /^nothing has moved for 180\d s: the repository's storage does not respond/],
    [
      'disk',
      60,
      /^nothing has moved for 360\d s: everything is written, but the volume at \/volume/,
    ],
  ] as const)('and waits for the %s has %d minutes', async (waitsFor, minutes, message) => {
    const { watching, ended } = watch(waitsFor);
    await vi.advanceTimersByTimeAsync((minutes - 1) * 60_000);
    expect(watching.stalled).toBeUndefined();
    await vi.advanceTimersByTimeAsync(2 * 60_000);
    expect(watching.stalled?.message).toMatch(message);
    expect(await ended).toMatch(message);
    watching.stop();
  });

  it('ends also where the storage answers what the move asks by itself now and then', async () => {
    const { sample, watching, ended } = watch('volume');
    let minutes = 0;
    for (; minutes < 240 && !watching.stalled; minutes++) {
      if (minutes % 14 === 0) sample.answers++;
      await vi.advanceTimersByTimeAsync(60_000);
    }
    expect(minutes).toBeGreaterThanOrEqual(30);
    expect(minutes).toBeLessThanOrEqual(31);
    expect(await ended).toMatch(/^nothing has moved for 180\d s: the volume at \/volume hangs/);
    watching.stop();
  });

  it.each([
    ['answers', 'storage'],
    ['moved', 'volume'],
  ] as const)('does not end while its %s grow, and it waits for the %s', async (what, waitsFor) => {
    const { sample, watching } = watch(waitsFor);
    for (let minutes = 0; minutes < 240; minutes += 14) {
      sample[what]++;
      await vi.advanceTimersByTimeAsync(14 * 60_000);
    }
    expect(watching.stalled).toBeUndefined();
    watching.stop();
  });

  it('may be put to sleep with its machine for longer than that', async () => {
    const { watching } = watch('volume');
    const now = performance.now.bind(performance);
    await vi.advanceTimersByTimeAsync(14 * 60_000);
    performance.now = () => now() + 3_600_000;
    try {
      await vi.advanceTimersByTimeAsync(30_000);
      expect(watching.stalled).toBeUndefined();
      await vi.advanceTimersByTimeAsync(60_000);
      expect(watching.stalled).toBeDefined();
    } finally {
      performance.now = now;
      watching.stop();
    }
  });
});

const isRoot = process.getuid?.() === 0;
it.skipIf(!isRoot && process.env.REQUIRE_PEERS !== '1')(
  'one file that cannot be read fails the backup, and no snapshot looks whole',
  () => {
    const folder = fs.mkdtempSync(join(tmpdir(), 'longshore-unreadable-'));
    try {
      fs.mkdirSync(join(folder, 'volume'));
      fs.writeFileSync(join(folder, 'volume/open'), 'text');
      fs.writeFileSync(join(folder, 'volume/closed'), 'secret', { mode: 0o000 });
      fs.chmodSync(folder, 0o755);
      fs.mkdirSync(join(folder, 'repo'));
      fs.chownSync(join(folder, 'repo'), 65_534, 65_534);
      // Root reads everything: the backup runs as somebody else.
      const script = new URL('./backup-as-nobody.ts', import.meta.url).pathname;
      const { stdout } = spawnSync(process.execPath, [script, folder], {
        uid: 65_534,
        gid: 65_534,
        encoding: 'utf8',
      });
      const { message, code, snapshots } = JSON.parse(stdout) as {
        message: string;
        code: string;
        snapshots: number;
      };
      expect(code).toBe('VOLUME_INCOMPLETE');
      expect(message).toMatch(/Error when processing closed: .*permission denied/i);
      expect(snapshots).toBe(0);
    } finally {
      fs.rmSync(folder, { recursive: true, force: true });
    }
  },
);
