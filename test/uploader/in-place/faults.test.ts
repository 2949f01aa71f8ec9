import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { CanceledError, silentLogger } from '../../../src/base/index.ts';
import { type ObjectId, type Repository, writeObject } from '../../../src/repository/index.ts';
import { type DirectoryEntry, encodeDirectory } from '../../../src/snapshot/index.ts';
import {
  type InPlaceCounters,
  type InPlaceOptions,
  newInPlaceCounters,
  restoreTreeInPlace,
} from '../../../src/uploader/index.ts';
import type { ThreadPool, ThreadPoolFactory } from '../../../src/volume-files/index.ts';
import { createInProcessPool } from '../../../src/workers/index.ts';
import { canMount, mountSmallDisk } from '../../support/full-disk.ts';
import { assertSameTree, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../../support/repositories.ts';
import { callsThrough } from '../../support/with-calls.ts';

const work = tempDirectory('in-place-faults');
const at = (...names: string[]): string => join(work, ...names);
const CHUNK = 128 << 10;

/** Called before each task of the threads. */
let beforeTask: (task: string) => void = () => undefined;
/** Ranges from this offset on cannot be read. */
let unreadableFrom = Infinity;
const factory: ThreadPoolFactory = (keys, arena) =>
  callsThrough(createInProcessPool(keys, arena), async (task, given, go) => {
    beforeTask(task);
    const result = await (go() as Promise<unknown>);
    if (task !== 'compareRanges') return result;
    const [ranges] = given as Parameters<ThreadPool['compareRanges']>;
    const failures = ranges.flatMap(({ offset }, index) =>
      offset >= unreadableFrom ? [{ index, code: 'EIO', message: 'EIO: i/o error, read' }] : [],
    );
    return { ...(result as object), failures };
  });

let repository: Repository;
let root: DirectoryEntry;
beforeAll(async () => {
  fs.mkdirSync(at('tree/sub'), { recursive: true });
  for (const name of ['a', 'sub/b']) {
    fs.writeFileSync(at('tree', name), noise(name, 5 * CHUNK + 100));
  }
  for (let i = 0; i < 8; i++) fs.writeFileSync(at('tree/sub', `small-${i}`), `small ${i}`);
  await createTest(at('repo'), { splitter: 'FIXED-128K' });
  repository = await openTest(at('repo'), { factory });
  root = (await backUp(repository, at('tree'))).rootEntry;
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});
beforeEach(() => {
  beforeTask = () => undefined;
  unreadableFrom = Infinity;
});

const inPlace = (
  target: string,
  options: Partial<InPlaceOptions> = {},
  from = root,
): Promise<InPlaceCounters> =>
  restoreTreeInPlace(repository, from, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    ignoreOpenFiles: true,
    ...options,
  });

let number = 0;
/** A tree that differs in many ways. */
async function changed(target = at(`out-${number++}`)): Promise<string> {
  await restore(repository, root, target);
  for (const name of ['a', 'sub/b']) {
    const file = fs.openSync(join(target, name), 'r+');
    for (const i of [0, 2, 4]) fs.writeSync(file, 'X', i * CHUNK + i);
    fs.closeSync(file);
  }
  fs.rmSync(join(target, 'sub/small-1'));
  fs.rmSync(join(target, 'sub/small-2'));
  fs.symlinkSync('small-1', join(target, 'sub/small-2'));
  fs.mkdirSync(join(target, 'new/deep'), { recursive: true });
  fs.writeFileSync(join(target, 'new/deep/file'), 'new');
  return target;
}

describe('a run that is stopped', () => {
  it('at any task leaves what the next run completes', async () => {
    let tasks = 0;
    beforeTask = () => tasks++;
    await inPlace(await changed());
    expect(tasks).toBeGreaterThan(10);
    for (let stopAt = 1; stopAt <= tasks; stopAt++) {
      const target = await changed();
      const controller = new AbortController();
      let done = 0;
      beforeTask = () => {
        if (++done < stopAt) return;
        controller.abort(new CanceledError('user'));
        throw new CanceledError('user');
      };
      await inPlace(target, { signal: controller.signal }).catch((error: unknown) => {
        expect(error).toMatchObject({ code: 'CANCELED' });
      });
      beforeTask = () => undefined;
      await inPlace(target);
      assertSameTree(at('tree'), target);
      fs.rmSync(target, { recursive: true });
    }
  });
});

describe('a file that cannot be read', () => {
  it('stays as it is; the others are restored, and the run fails', async () => {
    const target = await changed();
    fs.rmSync(join(target, 'a'));
    const before = fs.readFileSync(join(target, 'sub/b'));
    unreadableFrom = CHUNK;
    await expect(inPlace(target)).rejects.toMatchObject({
      code: 'RESTORE_INCOMPLETE',
      message: `cannot restore ${join(target, 'sub/b')}: EIO: i/o error, read`,
    });
    expect(fs.readFileSync(join(target, 'sub/b')).equals(before)).toBe(true);
    expect(fs.readFileSync(join(target, 'a')).equals(noise('a', 5 * CHUNK + 100))).toBe(true);
    await expect(inPlace(target, { dryRun: true })).rejects.toMatchObject({
      code: 'RESTORE_INCOMPLETE',
    });
  });
});

describe('a content that is missing', () => {
  const packs = (): string[] =>
    fs
      .readdirSync(at('lossy'), { recursive: true, encoding: 'utf8' })
      .filter((name) => /(^|\/)p/.test(name) && fs.statSync(at('lossy', name)).isFile());

  it('leaves the file that needs it as it is; where nothing differs it is not needed', async () => {
    await createTest(at('lossy'), { splitter: 'FIXED-128K' });
    fs.mkdirSync(at('grown'));
    fs.writeFileSync(at('grown/a'), noise('a', 3 * CHUNK));
    {
      await using first = await openTest(at('lossy'));
      await backUp(first, at('grown'));
    }
    const before = packs();
    fs.writeFileSync(at('grown/b'), noise('b', 3 * CHUNK));
    {
      await using second = await openTest(at('lossy'));
      const { rootEntry } = await backUp(second, at('grown'));
      await restore(second, rootEntry, at('lossy-out'));
      for (const pack of packs()) if (!before.includes(pack)) fs.rmSync(at('lossy', pack));
      const run = (): Promise<InPlaceCounters> =>
        restoreTreeInPlace(second, rootEntry, at('lossy-out'), {
          logger: silentLogger,
          signal: new AbortController().signal,
          ignoreOpenFiles: true,
        });
      expect(await run()).toMatchObject({ unchanged: 2 });
      for (const name of ['a', 'b']) {
        const file = fs.openSync(at('lossy-out', name), 'r+');
        for (const i of [0, 1, 2]) fs.writeSync(file, 'X', i * CHUNK);
        fs.closeSync(file);
      }
      const broken = fs.readFileSync(at('lossy-out/b'));
      await expect(run()).rejects.toMatchObject({
        code: 'DAMAGED_BLOB',
        message: expect.stringMatching(
          /^the repository lacks data of this snapshot \(b: blob p[-\w]+ is damaged: content \w+: the blob is missing\); nothing was changed\./,
        ) as string,
      });
      expect(fs.readFileSync(at('lossy-out/b')).equals(broken)).toBe(true);
      expect(fs.readFileSync(at('lossy-out/a')).equals(noise('a', 3 * CHUNK))).toBe(false);
      fs.writeFileSync(at('lossy-out/b'), noise('b', 3 * CHUNK));
      await run();
      expect(fs.readFileSync(at('lossy-out/a')).equals(noise('a', 3 * CHUNK))).toBe(true);
    }
  });
});

describe('a snapshot that does not have all', () => {
  it('removes nothing unless it is told to keep what it does not have', async () => {
    const target = await changed();
    const { summary } = root;
    if (!summary) throw new Error('the root has a summary');
    const part = { ...root, summary: { ...summary, incomplete: 'canceled' } };
    await expect(inPlace(target, {}, part)).rejects.toMatchObject({ code: 'SNAPSHOT_INCOMPLETE' });
    const failed = { ...root, summary: { ...summary, numFailed: 2, numIgnoredErrors: 1 } };
    await expect(inPlace(target, {}, failed)).rejects.toMatchObject({
      code: 'SNAPSHOT_INCOMPLETE',
      message:
        'this snapshot lacks 3 entries that could not be read when it was made, and --in-place would remove them: use --keep-extra, or choose another snapshot',
    });
    expect(fs.existsSync(join(target, 'new/deep/file'))).toBe(true);
    expect(await inPlace(target, { keepExtra: true }, failed)).toMatchObject({ kept: 1 });
    expect(fs.existsSync(join(target, 'new/deep/file'))).toBe(true);
  });

  it('or that names what is outside changes nothing there', async () => {
    const none = { compressor: undefined, metadataCompressor: undefined };
    const { splitter } = repository;
    const put = (data: Uint8Array, prefix: '' | 'k'): Promise<ObjectId> =>
      writeObject(repository.contents, [data], {
        prefix,
        ...none,
        splitter,
        indexSplitter: splitter,
      });
    const common = { mode: 0o644, mtimeNs: 0n, uid: 0, gid: 0, size: 4 };
    const objectId = await put(Buffer.from('evil'), '');
    const entries = ['../evil', '..', '/etc/evil'].map((name): DirectoryEntry => ({
      ...common,
      name,
      type: 'f',
      objectId,
    }));
    const summary = { size: 0, files: 0, symlinks: 0, dirs: 1, maxTimeNs: 0n, numFailed: 0 };
    const evil = { ...root, objectId: await put(encodeDirectory(entries, summary), 'k'), summary };
    await repository.flush();
    const target = await changed();
    for (const options of [{ dryRun: true }, { maxWriteBytes: 1e9 }, { keepExtra: true }]) {
      await expect(inPlace(target, options, evil)).rejects.toMatchObject({
        code: 'RESTORE_INCOMPLETE',
        message: expect.stringContaining('unsafe name') as string,
      });
    }
    expect(fs.existsSync(at('evil'))).toBe(false);
  });
});

describe('the target itself', () => {
  it('has to be there, and a directory', async () => {
    await expect(inPlace(at('missing'))).rejects.toMatchObject({
      code: 'TARGET_UNUSABLE',
      message: `cannot restore to ${at('missing')}: it does not exist; --in-place needs the directory that is to be brought back`,
    });
    expect(fs.existsSync(at('missing'))).toBe(false);
    fs.writeFileSync(at('file'), '');
    await expect(inPlace(at('file'))).rejects.toThrow('it is not a directory');
    await expect(inPlace(at('tree'), {}, { ...root, type: 'f' })).rejects.toThrow(
      'this is a single file',
    );
  });

  it('is not brought back twice at once', async () => {
    const target = await changed();
    const both = await Promise.allSettled([inPlace(target), inPlace(target)]);
    expect(both.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
    assertSameTree(at('tree'), target);
  });
});

describe('a file that another process writes to meanwhile', () => {
  const write = (target: string, flag: string): void => {
    fs.writeFileSync(join(target, 'a'), 'written meanwhile', { flag });
  };
  it.each([
    ['while it is compared, and gets longer', 'compareRanges', 'a', false],
    ['while it is compared, and keeps its length', 'compareRanges', 'r+', false],
    ['while it is compared, and differs anyway', 'compareRanges', 'r+', true],
    ['while what differs is written', 'open', 'a', true],
  ])('%s, is not taken for what the snapshot has', async (_, when, flag, isChanged) => {
    const target = isChanged ? await changed() : at(`out-${number++}`);
    if (!isChanged) await restore(repository, root, target);
    let isWritten = false;
    beforeTask = (task) => {
      if (task !== when || isWritten) return;
      isWritten = true;
      write(target, flag);
    };
    const text = 'another process wrote to it while it was restored';
    await expect(inPlace(target)).rejects.toThrow(`${join(target, 'a')}: ${text}`);
    expect(isWritten).toBe(true);
    await inPlace(target);
    assertSameTree(at('tree'), target);
  });

  it('is only looked at in a dry run', async () => {
    const target = at(`out-${number++}`);
    await restore(repository, root, target);
    beforeTask = (task) => {
      if (task === 'compareRanges') write(target, 'a');
    };
    await inPlace(target, { dryRun: true });
  });
});

describe.runIf(canMount)('file systems', () => {
  it('that are mounted below the target are refused before anything is changed', async () => {
    const target = await changed();
    fs.mkdirSync(at('mine'));
    fs.writeFileSync(at('mine/file'), 'mine');
    for (const point of ['new/deep', 'sub']) {
      // The same file system: only its mounts tell.
      execFileSync('mount', ['--bind', at('mine'), join(target, point)]);
      try {
        await expect(inPlace(target)).rejects.toMatchObject({
          code: 'MOUNT_BELOW_TARGET',
          message: `something is mounted at ${join(target, point)}, below the target: unmount it first, so that it is not taken for a part of the target`,
        });
      } finally {
        execFileSync('umount', [join(target, point)]);
      }
    }
    expect(fs.readFileSync(at('mine/file'), 'utf8')).toBe('mine');
    expect(fs.existsSync(join(target, 'new/deep/file'))).toBe(true);
  });

  it('that appear meanwhile are neither entered nor emptied', async () => {
    const target = await changed();
    const point = join(target, 'sub');
    fs.mkdirSync(at('late'));
    fs.writeFileSync(at('late/file'), 'mine');
    let isMounted = false;
    beforeTask = () => {
      if (isMounted) return;
      isMounted = true;
      execFileSync('mount', ['--bind', at('late'), point]);
    };
    try {
      await expect(inPlace(target, { maxWriteBytes: 1e9 })).rejects.toThrow('something is mounted');
    } finally {
      execFileSync('umount', [point]);
    }
    expect(fs.readdirSync(at('late'))).toEqual(['file']);
  });

  it('that are full of what the snapshot does not have get room first, if that is asked for', async () => {
    using disk = mountSmallDisk(4 << 20);
    const target = join(disk.path, 'volume');
    await changed(target);
    fs.rmSync(join(target, 'a'));
    disk.fill();
    fs.renameSync(join(disk.path, 'filler'), join(target, 'sub/runaway.log'));
    for (const dryRun of [true, false]) {
      await expect(inPlace(target, { dryRun })).rejects.toMatchObject({
        code: 'TARGET_FULL',
        message: expect.stringContaining('--remove-first') as string,
      });
    }
    expect(fs.existsSync(join(target, 'sub/runaway.log'))).toBe(true);
    expect(fs.existsSync(join(target, 'a'))).toBe(false);
    await inPlace(target, { removeFirst: true });
    assertSameTree(at('tree'), target);
  });

  it('that are full keep what waits for its turn from being read in vain', async () => {
    const files = 600;
    const bytes = noise('many', 64 << 10);
    fs.mkdirSync(at('many'));
    for (let i = 0; i < files; i++) fs.writeFileSync(at('many', `${i}`), bytes);
    const many = (await backUp(repository, at('many'))).rootEntry;
    using disk = mountSmallDisk(16 << 20);
    const target = join(disk.path, 'volume');
    fs.mkdirSync(target);
    for (let i = 0; i < files; i++) {
      fs.writeFileSync(join(target, `${i}`), '');
      fs.truncateSync(join(target, `${i}`), bytes.length);
    }
    disk.fill();
    const result = newInPlaceCounters();
    await expect(inPlace(target, { result }, many)).rejects.toMatchObject({ code: 'TARGET_FULL' });
    // Some are under way beside each other when the first one finds that the disk is full.
    expect(result.bytesCompared / bytes.length).toBeLessThan(files / 2);
  });

  it('that are too small end the run with what to do, and the next one completes it', async () => {
    using disk = mountSmallDisk(4 << 20);
    const target = join(disk.path, 'volume');
    await changed(target);
    fs.rmSync(join(target, 'sub/b'));
    disk.fill();
    await expect(inPlace(target)).rejects.toMatchObject({ code: 'TARGET_FULL' });
    fs.rmSync(join(disk.path, 'filler'));
    await inPlace(target);
    assertSameTree(at('tree'), target);
  });
});
