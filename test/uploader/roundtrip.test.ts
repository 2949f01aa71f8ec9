import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { CanceledError } from '../../src/base/index.ts';
import {
  listPieces,
  type ObjectId,
  readRange,
  type Repository,
} from '../../src/repository/index.ts';
import { listSnapshots, readDirectory } from '../../src/snapshot/index.ts';
import { newUploadCounters, restoreBlocks } from '../../src/uploader/index.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import {
  backUp,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
  restore,
} from '../support/repositories.ts';
import { hasLoopDevices, loopDevice } from '../support/loop-device.ts';
import { noise } from '../support/noise.ts';
import { age, makeTree } from '../support/trees.ts';

const work = tempDirectory('roundtrip');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

describe.each([false, true])('a tree, worker threads: %s', (threads) => {
  const repo = at(`repo-${threads}`);
  const tree = at(`tree-${threads}`);

  it('comes back as it was, twice, and the second backup stores nothing', async () => {
    makeTree(tree, 'round');
    await createTest(repo);
    await using repository = await openTest(repo, { threads });
    const first = await backUp(repository, tree);
    expect(first.counters).toMatchObject({ errors: 0, cachedFiles: 0 });
    await restore(repository, first.rootEntry, at(`out-${threads}`));
    assertSameTree(tree, at(`out-${threads}`));
    const second = await backUp(repository, tree);
    expect(second.rootEntry.objectId).toBe(first.rootEntry.objectId);
    expect(second.counters).toMatchObject({ files: 0, bytesRead: 0, contentsNew: 0 });
    const again = await restore(repository, first.rootEntry, at(`out-${threads}`));
    expect(again.files).toBe(0);
  });

  it('is read whole when times changed, and still stores nothing', async () => {
    await using repository = await openTest(repo, { threads });
    const lately = new Date(Date.now() - 600_000);
    fs.utimesSync(join(tree, 'data/big'), lately, lately);
    const { counters } = await backUp(repository, tree);
    expect(counters).toMatchObject({ files: 1, contentsNew: 0, bytesRead: 3_000_000 });
  });

  it('a file that changed is stored, the others are taken over', async () => {
    await using repository = await openTest(repo, { threads });
    fs.appendFileSync(join(tree, 'README'), 'more\n');
    const { counters, rootEntry } = await backUp(repository, tree);
    expect(counters).toMatchObject({ files: 1, contentsNew: 1 });
    await restore(repository, rootEntry, at(`changed-${threads}`));
    assertSameTree(tree, at(`changed-${threads}`));
  });
});

it('an interrupted backup leaves an incomplete snapshot that the next one builds on', async () => {
  const [repo, tree] = [at('repo-interrupted'), at('tree-interrupted')];
  for (let i = 0; i < 60; i++) {
    fs.mkdirSync(join(tree, `d${i}`), { recursive: true });
    fs.writeFileSync(join(tree, `d${i}`, 'file'), noise(`interrupted-${i}`, 200_000));
  }
  age(tree);
  await createTest(repo);
  await using repository = await openTest(repo);
  const controller = new AbortController();
  const counters = newUploadCounters();
  // Ctrl-C in the middle of the walk: when the 30th directory is counted.
  let directories = 0;
  Object.defineProperty(counters, 'directories', {
    get: () => directories,
    set: (count: number) => {
      directories = count;
      if (count === 30) controller.abort(new CanceledError('user'));
    },
  });
  const partial = await backUp(repository, tree, { signal: controller.signal, counters });
  expect(partial.snapshot.incomplete).toBe('canceled');
  expect((await listSnapshots(repository)).map(({ incomplete }) => incomplete)).toEqual([
    'canceled',
  ]);
  const whole = await backUp(repository, tree);
  expect(whole.snapshot.incomplete).toBeUndefined();
  expect(counters.files).toBeGreaterThan(20);
  expect(whole.counters.cachedFiles).toBe(counters.files);
  await restore(repository, whole.rootEntry, at('out-interrupted'));
  assertSameTree(tree, at('out-interrupted'));
});

async function expectBlocks(
  repository: Repository,
  root: Parameters<typeof restoreBlocks>[1],
  image: string,
): Promise<void> {
  const out = at('blocks-out.img');
  const options = { logger: recordingLogger(), signal: new AbortController().signal };
  await restoreBlocks(repository, root, out, options);
  expect(fs.readFileSync(out).equals(fs.readFileSync(image))).toBe(true);
  fs.rmSync(out);
}

describe('a raw volume', () => {
  const [repo, image] = [at('repo-block'), at('volume.img')];

  it('is stored without reading its holes, in the layout of Velero, and comes back', async () => {
    fs.writeFileSync(image, noise('block-start', 5_000_001));
    const file = fs.openSync(image, 'r+');
    fs.ftruncateSync(file, 300 << 20);
    fs.writeSync(file, noise('block-far', 777_777), 0, 777_777, 200 << 20);
    fs.closeSync(file);
    await createTest(repo);
    await using repository = await openTest(repo, { threads: true });
    const { counters, rootEntry } = await backUp(repository, image, { block: true });
    expect(counters.bytesRead).toBeLessThan(16 << 20);
    expect(counters.bytesNew).toBeLessThan(20 << 20);
    const [entry, ...others] = await readDirectory(repository, rootEntry.objectId);
    expect(others).toEqual([]);
    expect(entry).toMatchObject({ name: image, type: 'f', mode: 0o777, size: 300 << 20 });
    const options = { logger: recordingLogger(), signal: new AbortController().signal };
    await restoreBlocks(repository, rootEntry, at('plain.img'), options);
    expect(fs.readFileSync(at('plain.img')).equals(fs.readFileSync(image))).toBe(true);
    await restoreBlocks(repository, rootEntry, at('sparse.img'), { ...options, sparse: true });
    expect(fs.readFileSync(at('sparse.img')).equals(fs.readFileSync(image))).toBe(true);
    expect(fs.statSync(at('sparse.img')).blocks * 512).toBeLessThan(40 << 20);
    const again = await backUp(repository, image, { block: true });
    expect(again.counters.contentsNew).toBe(0);
  });

  it('interrupted, leaves an incomplete snapshot and stores little again', async () => {
    const image = at('cut.img');
    fs.writeFileSync(image, noise('cut', 100_000_000));
    await createTest(at('repo-cut'));
    await using repository = await openTest(at('repo-cut'), { threads: true });
    const controller = new AbortController();
    const counters = new Proxy(newUploadCounters(), {
      set: (target, key, value: number) => {
        if (key === 'bytesNew' && value > 40_000_000) controller.abort(new CanceledError('user'));
        return Reflect.set(target, key, value);
      },
    });
    const first = await backUp(repository, image, {
      block: true,
      counters,
      signal: controller.signal,
    });
    expect(first.snapshot.incomplete).toBe('canceled');
    await expect(expectBlocks(repository, first.rootEntry, image)).rejects.toMatchObject({
      code: 'SNAPSHOT_INCOMPLETE',
      message: expect.stringContaining('(canceled)') as string,
    });
    const second = await backUp(repository, image, { block: true });
    expect(second.snapshot.incomplete).toBeUndefined();
    expect(second.counters.bytesNew).toBeLessThan(100_000_000 - 40_000_000);
    await expectBlocks(repository, second.rootEntry, image);
  });

  it.skipIf(!hasLoopDevices)('of a block device goes to a file and back to a device', async () => {
    const image = at('device.img');
    fs.writeFileSync(image, Buffer.concat([noise('device', 9_000_000), Buffer.alloc(15_576_000)]));
    await using repository = await openTest(at('repo-cut'), { threads: true });
    await using source = loopDevice(image);
    const { rootEntry, counters } = await backUp(repository, source.path, { block: true });
    expect(counters.bytesRead).toBe(24_576_000);
    expect(rootEntry.summary).toMatchObject({ size: 24_576_000, files: 1 });
    await expectBlocks(repository, rootEntry, image);
    fs.writeFileSync(at('target.img'), Buffer.alloc(24_576_000, 1));
    fs.writeFileSync(at('small.img'), Buffer.alloc(1 << 20));
    const options = { logger: recordingLogger(), signal: new AbortController().signal };
    {
      await using target = loopDevice(at('target.img'));
      await restoreBlocks(repository, rootEntry, target.path, options);
      await using small = loopDevice(at('small.img'));
      await expect(restoreBlocks(repository, rootEntry, small.path, options)).rejects.toMatchObject(
        { code: 'TARGET_UNUSABLE' },
      );
    }
    expect(fs.readFileSync(at('target.img')).equals(fs.readFileSync(image))).toBe(true);
  });

  it.each(['image', 'device'])('that ends before its size (%s) fails the backup', async (kind) => {
    if (kind === 'device' && !hasLoopDevices) return;
    const image = at(`short-${kind}.img`);
    fs.writeFileSync(image, Buffer.alloc(60_000_000, 'short'));
    await using device = kind === 'device' ? loopDevice(image) : undefined;
    const path = device?.path ?? image;
    await using repository = await openTest(repo);
    const before = await listSnapshots(repository);
    const counters = new Proxy(newUploadCounters(), {
      set: (target, key, value: number) => {
        // A loop device with a truncated file gives errors, not an end.
        if (key === 'bytesRead') fs.truncateSync(image, 4 << 20);
        return Reflect.set(target, key, value);
      },
    });
    await expect(backUp(repository, path, { block: true, counters })).rejects.toMatchObject({
      code: 'SOURCE_UNREADABLE',
      message: expect.stringMatching(
        kind === 'image'
          ? `^cannot read ${image}: it ended after \\d+ of 60000000 bytes$`
          : `^cannot read ${path}: EIO`,
      ) as string,
    });
    expect(await listSnapshots(repository)).toEqual(before);
  });

  it('that is cut behind where it is read fails the backup too: what is gone looks like a hole', async () => {
    const image = at('cut.img');
    fs.writeFileSync(image, Buffer.alloc(60_000_000, 'cut'));
    await using repository = await openTest(repo);
    const before = await listSnapshots(repository);
    const counters = new Proxy(newUploadCounters(), {
      set: (target, key, value: number) => {
        if (key === 'bytesRead') fs.truncateSync(image, 50_000_000);
        return Reflect.set(target, key, value);
      },
    });
    await expect(backUp(repository, image, { block: true, counters })).rejects.toMatchObject({
      code: 'SOURCE_UNREADABLE',
      message: `cannot read ${image}: it ended after 50000000 of 60000000 bytes`,
    });
    expect(await listSnapshots(repository)).toEqual(before);
  });

  it('that grew meanwhile has the size that was read', async () => {
    const image = at('grown.img');
    // Longer than the read-ahead, so the upload sees the end only after it has moved.
    fs.writeFileSync(image, Buffer.alloc(60_000_000, 'grown'));
    await using repository = await openTest(repo);
    const counters = new Proxy(newUploadCounters(), {
      set: (target, key, value: number) => {
        if (key === 'bytesRead') fs.truncateSync(image, 64_000_000);
        return Reflect.set(target, key, value);
      },
    });
    const { rootEntry } = await backUp(repository, image, { block: true, counters });
    const [entry] = await readDirectory(repository, rootEntry.objectId);
    expect(entry?.size).toBe(64_000_000);
    expect(rootEntry.summary?.size).toBe(64_000_000);
    await expectBlocks(repository, rootEntry, image);
  });

  it.skipIf(!hasLoopDevices)('is refused where nothing is behind the device', async () => {
    // Use our own device: another process may take a free device at any moment.
    fs.writeFileSync(at('nothing'), '');
    await using device = loopDevice(at('nothing'));
    const { path } = device;
    await using repository = await openTest(repo);
    await expect(backUp(repository, path, { block: true })).rejects.toMatchObject({
      code: 'SOURCE_UNREADABLE',
      message: `cannot read ${path}: the device is empty`,
    });
  });

  it('is refused where a pipe that nobody writes to has the path', async () => {
    execFileSync('mkfifo', [at('pipe')]);
    await using repository = await openTest(repo);
    await expect(backUp(repository, at('pipe'), { block: true })).rejects.toMatchObject({
      code: 'SOURCE_UNREADABLE',
    });
  });

  it.each(['whole', 'sparse'])(
    'whose content is shorter than it says is not restored (%s)',
    async (how) => {
      await using repository = await openTest(repo);
      const [snapshot] = await listSnapshots(repository);
      const root = snapshot?.rootEntry ?? expect.fail();
      const [entry] = await readDirectory(repository, root.objectId);
      const wrong = { ...(entry ?? expect.fail()), name: 'volume', size: (300 << 20) + 1 };
      const options = { logger: recordingLogger(), signal: new AbortController().signal };
      const text = 'its content has 314572800 bytes, but the snapshot says 314572801';
      const failure = { message: expect.stringContaining(text) as string };
      const target = at(`wrong-${how}.img`);
      await expect(
        restoreBlocks(repository, wrong, target, { ...options, sparse: how === 'sparse' }),
      ).rejects.toMatchObject(failure);
      await expect(
        restore(repository, wrong, target, { sparse: how === 'sparse' }),
      ).rejects.toMatchObject(failure);
      expect(fs.existsSync(target)).toBe(false);
    },
  );

  it('is not restored over what is there where nothing is to be overwritten', async () => {
    await using repository = await openTest(repo);
    const [snapshot] = await listSnapshots(repository);
    const root = snapshot?.rootEntry ?? expect.fail();
    const options = {
      logger: recordingLogger(),
      signal: new AbortController().signal,
      overwrite: 'never',
    } as const;
    const target = at('never.img');
    fs.writeFileSync(target, 'of somebody else');
    await expect(restoreBlocks(repository, root, target, options)).rejects.toMatchObject({
      code: 'TARGET_UNUSABLE',
      message: expect.stringContaining('it already exists') as string,
    });
    expect(fs.readFileSync(target, 'utf8')).toBe('of somebody else');
    fs.unlinkSync(target);
    await restoreBlocks(repository, root, target, options);
    expect(fs.statSync(target).size).toBe(root.summary?.size);
  });

  it('over an image leaves it until the new one is whole', async () => {
    const source = at('over-source.img');
    fs.writeFileSync(source, noise('over', 6_000_000));
    await createTest(at('repo-over'));
    await using repository = await openTest(at('repo-over'), { threads: true });
    const { rootEntry } = await backUp(repository, source, { block: true });
    const { signal } = new AbortController();
    const options = { logger: recordingLogger(), signal, ownTarget: true };
    fs.mkdirSync(at('over'));
    const target = join(at('over'), 'disk.img');
    const link = join(at('over'), 'link.img');
    fs.symlinkSync('disk.img', link);
    fs.writeFileSync(target, 'an older and longer image '.repeat(1e6), { mode: 0o640 });
    await restoreBlocks(repository, rootEntry, link, options);
    expect(fs.readFileSync(target).equals(fs.readFileSync(source))).toBe(true);
    expect(fs.statSync(target).mode & 0o777).toBe(0o640);
    fs.writeFileSync(target, 'the only copy');
    // A killed restore has left it.
    fs.writeFileSync(join(at('over'), '.longshore-restore-0123456789abcdef'), 'half');
    const packs = fs.readdirSync(at('repo-over'), { recursive: true, encoding: 'utf8' });
    for (const pack of packs.filter((path) => /(^|\/)p[^/]*\.f$/.test(path) || /^p/.test(path))) {
      const path = join(at('repo-over'), pack);
      if (fs.statSync(path, { throwIfNoEntry: false })?.isFile()) fs.rmSync(path);
    }
    for (const sparse of [false, true]) {
      await expect(
        restoreBlocks(repository, rootEntry, target, { ...options, sparse }),
      ).rejects.toThrow(/cannot restore /);
      expect(fs.readFileSync(target, 'utf8')).toBe('the only copy');
    }
    const aborted = AbortSignal.abort(new CanceledError('user'));
    await expect(
      restoreBlocks(repository, rootEntry, target, { ...options, signal: aborted }),
    ).rejects.toThrow();
    expect(fs.readFileSync(target, 'utf8')).toBe('the only copy');
    expect(fs.readdirSync(at('over')).sort()).toEqual(['disk.img', 'link.img']);
  });

  it('is refused where the path is no volume, and for a target that is none', async () => {
    await using repository = await openTest(repo);
    await expect(backUp(repository, work, { block: true })).rejects.toMatchObject({
      code: 'SOURCE_UNREADABLE',
    });
    const [snapshot] = await listSnapshots(repository);
    if (!snapshot?.rootEntry) throw new Error('no snapshot');
    const options = { logger: recordingLogger(), signal: new AbortController().signal };
    await expect(
      restoreBlocks(repository, snapshot.rootEntry, work, options),
    ).rejects.toMatchObject({
      code: 'TARGET_UNUSABLE',
    });
  });
});

it.skipIf(!hasKopia)(
  'FastCDC cuts are remembered by the source, and the real Kopia reads what they made',
  async () => {
    const [repo, tree] = [at('repo-fastcdc'), at('tree-fastcdc')];
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'volume'), noise('fastcdc', 30_000_000));
    await createTest(repo);
    await using repository = await openTest(repo, { threads: true });
    const first = await backUp(repository, tree, { splitter: 'fastcdc-4m' });
    expect(first.counters.contentsNew).toBeGreaterThan(3);
    // Shifted by some bytes: all but the first chunks are found again, without naming the splitter.
    fs.writeFileSync(
      join(tree, 'volume'),
      Buffer.concat([Buffer.from('shift'), noise('fastcdc', 30_000_000)]),
    );
    const second = await backUp(repository, tree);
    expect(second.counters.contentsNew).toBeLessThan(first.counters.contentsNew);
    expect(second.snapshot.tags).toEqual({ 'tag:longshore-splitter': 'fastcdc-4m' });
    await restore(repository, second.rootEntry, at('out-fastcdc'));
    assertSameTree(tree, at('out-fastcdc'));
    new Kopia(PASSWORD).connect(repo).verifyAll();
  },
);

it('a splitter that nobody knows any more is warned of, and the default cuts', async () => {
  const [repo, tree] = [at('repo-unknown-splitter'), at('tree-unknown-splitter')];
  makeTree(tree, 'unknown');
  await createTest(repo);
  await using repository = await openTest(repo);
  await backUp(repository, tree, { tags: { 'tag:longshore-splitter': 'FUTURE-9M' } });
  const logger = recordingLogger();
  const { snapshot } = await backUp(repository, tree, { logger });
  expect(logger.messages.some((message) => message.includes('splitter'))).toBe(true);
  expect(snapshot.tags).toEqual({});
});

it('any range of a long object can be read', async () => {
  const repo = at('repo-range');
  await createTest(repo, { splitter: 'DYNAMIC-128K-BUZHASH' });
  await using repository = await openTest(repo);
  const data = noise('range', 1_500_000);
  const tree = at('tree-range');
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'file'), data);
  const { rootEntry } = await backUp(repository, tree);
  const [file] = await readDirectory(repository, rootEntry.objectId);
  const pieces = await listPieces(repository.contents, file?.objectId as ObjectId);
  expect(pieces.length).toBeGreaterThan(4);
  for (const [offset, length] of [
    [0, 10],
    [0, data.length],
    [700_001, 400_000],
    [data.length - 5, 100],
    [data.length, 1],
  ] as const) {
    const bytes = await readRange(repository.contents, pieces, offset, length);
    expect(Buffer.from(bytes).equals(data.subarray(offset, offset + length))).toBe(true);
  }
});

describe('sources with trouble', () => {
  it('a pipe is stored unread, names that are not UTF-8 are stored as Kopia does and warned of', async () => {
    const [repo, tree] = [at('repo-odd'), at('tree-odd')];
    fs.mkdirSync(tree);
    fs.writeFileSync(Buffer.concat([Buffer.from(`${tree}/bad-`), Buffer.of(0xff)]), 'one');
    fs.writeFileSync(Buffer.concat([Buffer.from(`${tree}/bad-`), Buffer.of(0xfe)]), 'two');
    const { execFileSync } = await import('node:child_process');
    execFileSync('mkfifo', [join(tree, 'fifo')]);
    await createTest(repo);
    await using repository = await openTest(repo);
    const logger = recordingLogger();
    const { counters, rootEntry } = await backUp(repository, tree, { logger });
    expect(counters).toMatchObject({ files: 2, skipped: 0, errors: 0 });
    expect(logger.messages.filter((message) => message.includes('UTF-8'))).toHaveLength(2);
    const names = (await readDirectory(repository, rootEntry.objectId)).map(({ name }) => name);
    expect(new Set(names)).toEqual(new Set(['bad-\ufffd', 'bad-\ufffd~2', 'fifo']));
  });

  it('a source that is not there is one clear sentence', async () => {
    await using repository = await openTest(at('repo-odd'));
    await expect(backUp(repository, at('nothing-here'))).rejects.toMatchObject({
      code: 'SOURCE_UNREADABLE',
      message: `cannot read ${at('nothing-here')}: it does not exist`,
    });
  });

  it('rules leave out what they name, and files of a compressor are compressed', async () => {
    const [repo, tree] = [at('repo-rules'), at('tree-rules')];
    makeTree(tree, 'rules');
    fs.writeFileSync(join(tree, '.kopiaignore'), '*.txt\n!repeated.txt\n/data/\n# nothing\n');
    await createTest(repo);
    await using repository = await openTest(repo);
    const { rootEntry, counters } = await backUp(repository, tree);
    const names = (await readDirectory(repository, rootEntry.objectId)).map(({ name }) => name);
    expect(names).not.toContain('data');
    expect(names).toContain('text');
    expect(counters.excludedFiles).toBe(1);
    expect(counters.excludedDirectories).toBe(1);
  });
});
