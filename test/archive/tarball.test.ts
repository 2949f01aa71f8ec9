import * as fs from 'node:fs';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { gunzipSync, gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  CONTENT_LIMITS,
  Contents,
  type ItemPlace,
  readTarball,
  ScratchFile,
  storeTarball,
  TarballWriter,
  updatedEntries,
} from '../../src/archive/index.ts';
import { gunzipped } from '../../src/archive/gzip.ts';
import { parseDirectory, directoryPath } from '../../src/archive/item-path.ts';
import { writeTar } from '../../src/archive/tar/write-tar.ts';
import { canMount, mountSmallDisk } from '../support/full-disk.ts';
import { goldenFile, goldenJson } from '../support/golden-bucket.ts';
import { prng } from '../support/golden.ts';
import { tempDirectory } from '../support/kopia.ts';

setFlagsFromString('--expose-gc');
const KEY = 'backups/b1/b1.tar.gz';
const MIB = 1 << 20;
const scratch = tempDirectory('scratch');
const POD = { groupResource: 'pods', version: 'v1', isPreferred: true, namespace: 'app' };
const NODE = { groupResource: 'nodes', version: 'v1', isPreferred: false, namespace: '' };

async function pathsOf(file: ScratchFile): Promise<string[]> {
  const entries = await Array.fromAsync(readTarball(file.read(), KEY));
  return entries.map(({ path }) => path);
}

describe('a tarball that is written', () => {
  it('has the version first, and an item twice where its version is the preferred one', async () => {
    await using writer = await TarballWriter.begin(scratch);
    await writer.addItem({ ...POD, name: 'writer' }, Buffer.from('{"a":1}'));
    await writer.addItem({ ...NODE, name: 'n1' }, Buffer.from('{}'));
    await using file = await writer.finish();
    expect(await pathsOf(file)).toEqual([
      'metadata/version',
      'resources/pods/namespaces/app/writer.json',
      'resources/pods/v1-preferredversion/namespaces/app/writer.json',
      'resources/nodes/v1/cluster/n1.json',
    ]);
    const { lengthBytes, sha256 } = file.finish();
    expect(lengthBytes).toBe(file.lengthBytes);
    expect(sha256).toMatch(/^[0-9a-f]{64}$/);
  });

  it('keeps the entries of an item next to each other, whoever adds at the same time', async () => {
    await using writer = await TarballWriter.begin(scratch);
    const names = Array.from({ length: 50 }, (_, i) => `p${i}`);
    await Promise.all(
      names.map((name) => writer.addItem({ ...POD, name }, Buffer.alloc(5000, name))),
    );
    await using file = await writer.finish();
    expect(await pathsOf(file)).toEqual([
      'metadata/version',
      ...names.flatMap((name) => [
        `resources/pods/namespaces/app/${name}.json`,
        `resources/pods/v1-preferredversion/namespaces/app/${name}.json`,
      ]),
    ]);
  });

  it('takes nothing for which readers would refuse it', async () => {
    const limits = { entryBytesMax: 1000, entriesMax: 3, unpackedBytesMax: 100_000 };
    await using writer = await TarballWriter.create(scratch, undefined, limits);
    const refused = { code: 'CONTENT_TOO_LONG' };
    await expect(writer.add('long', Buffer.alloc(1001))).rejects.toMatchObject(refused);
    for (const path of ['a', 'b', 'c']) await writer.add(path, Buffer.alloc(1000));
    await expect(writer.add('d', Buffer.alloc(1))).rejects.toMatchObject(refused);
    await using file = await writer.finish();
    const entries = await Array.fromAsync(readTarball(file.read(), KEY, limits));
    expect(entries.map(({ path }) => path)).toEqual(['a', 'b', 'c']);

    const short = { ...limits, entriesMax: 1000, unpackedBytesMax: 20_000 };
    await using other = await TarballWriter.create(scratch, undefined, short);
    const fill = async (): Promise<void> => {
      for (let i = 0; i < 100; i++) await other.add(`${i}`, Buffer.alloc(500));
    };
    await expect(fill()).rejects.toMatchObject(refused);
    await using rest = await other.finish();
    expect(await Array.fromAsync(readTarball(rest.read(), KEY, short))).not.toEqual([]);
  });

  it('never has a path twice', async () => {
    await using writer = await TarballWriter.begin(scratch);
    await writer.add('resources/a', Buffer.from('1'));
    await expect(writer.add('resources/a', Buffer.from('2'))).rejects.toThrow(/already/);
    const entry = (path: string) => ({ path, bytes: Buffer.from('3'), mtime: 0 });
    for (const paths of [
      ['resources/b', 'resources/a'],
      ['resources/b', 'resources/b'],
    ]) {
      await expect(writer.append(paths.map(entry))).rejects.toMatchObject({ code: 'PATH_TAKEN' });
    }
    await using file = await writer.finish();
    expect(await pathsOf(file)).toEqual(['metadata/version', 'resources/a']);
  });

  it.skipIf(!canMount)('says that the scratch space is full, and gives it back', async () => {
    using disk = mountSmallDisk(2 * MIB);
    const fill = async (): Promise<void> => {
      await using writer = await TarballWriter.begin(disk.path);
      for (let i = 0; i < 100; i++) await writer.add(`resources/${i}`, prng(`full ${i}`, 100_000));
      await using file = await writer.finish();
      expect(file.lengthBytes).toBe(0);
    };
    await expect(fill()).rejects.toMatchObject({
      code: 'SCRATCH_FULL',
      message: expect.stringContaining(disk.path) as string,
    });
    expect(fs.readdirSync(disk.path)).toEqual([]);
    const { bavail, bsize } = fs.statfsSync(disk.path);
    expect(bavail * bsize).toBeGreaterThan(1.9 * MIB);
    const opened = Contents.open([await bombOf(3)], KEY, { directory: disk.path });
    await expect(opened).rejects.toMatchObject({ code: 'SCRATCH_FULL' });
    await expect(TarballWriter.begin(`${disk.path}/gone`)).rejects.toMatchObject({
      code: 'SCRATCH_FAILED',
    });
  });
});

it.skipIf(!canMount)('the scratch space that is full only at the end is given back', async () => {
  using disk = mountSmallDisk(2 * MIB);
  const writer = await TarballWriter.begin(disk.path);
  await writer.add('resources/a', prng('small', 12_000));
  const rest = join(disk.path, 'rest');
  expect(() => {
    for (;;) fs.appendFileSync(rest, Buffer.alloc(4096));
  }).toThrow('ENOSPC');
  await expect(writer.finish()).rejects.toMatchObject({ code: 'SCRATCH_FULL' });
  await writer[Symbol.asyncDispose]();
  const open = fs.readdirSync('/proc/self/fd').flatMap((fd) => {
    try {
      return fs.readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return [];
    }
  });
  expect(open.filter((path) => path.startsWith(disk.path))).toEqual([]);
});

/** Zeros in items, so many MiB. */
async function bombOf(mib: number): Promise<Buffer> {
  const entries = Array.from({ length: mib }, (_, i) => ({
    path: `resources/x/cluster/${i}.json`,
    bytes: Buffer.alloc(MIB),
    mtime: 0,
  }));
  return gzipSync(Buffer.concat(await Array.fromAsync(writeTar(entries))));
}

describe('a tarball that is finished', () => {
  it('has new bytes in the places of old ones, and what is new at its end', async () => {
    await using writer = await TarballWriter.begin(scratch);
    for (const name of ['a', 'b', 'c']) await writer.add(`resources/${name}`, Buffer.from(name));
    await using old = await writer.finish();
    const updates = new Map([
      ['resources/z', Buffer.from('new')],
      ['resources/b', Buffer.from('changed')],
      ['resources/y', Buffer.from('also new')],
    ]);
    const mtime = 1_800_000_000;
    await using file = await storeTarball(
      scratch,
      updatedEntries(readTarball(old.read(), KEY), updates, mtime),
    );
    const entries = await Array.fromAsync(readTarball(file.read(), KEY));
    expect(entries.map(({ path, bytes }) => [path, bytes.toString()])).toEqual([
      ['metadata/version', '1.1.0\n'],
      ['resources/a', 'a'],
      ['resources/b', 'changed'],
      ['resources/c', 'c'],
      ['resources/z', 'new'],
      ['resources/y', 'also new'],
    ]);
    expect(entries.filter((entry) => entry.mtime === mtime)).toHaveLength(3);
    expect(updates.size).toBe(3);
  });

  it('passes through bounded memory', async () => {
    const count = 96;
    await using writer = await TarballWriter.begin(scratch);
    const before = held();
    let most = 0;
    for (let i = 0; i < count; i++) {
      await writer.add(`resources/${i}`, Buffer.alloc(MIB, `${i} of many `));
      most = Math.max(most, held() - before);
    }
    await using old = await writer.finish();
    async function* watched(): AsyncGenerator<{ path: string; bytes: Buffer; mtime: number }> {
      for await (const entry of readTarball(old.read(), KEY)) {
        most = Math.max(most, held() - before);
        yield entry;
      }
    }
    await using file = await storeTarball(scratch, watched());
    await using contents = await Contents.open(file.read(), KEY, { directory: scratch });
    most = Math.max(most, held() - before);
    expect(contents.formatVersion).toBe('1.1.0');
    expect(most / MIB).toBeLessThan(64);
  }, 60_000);

  it('is refused where the old one is damaged, before anything of it is stored', async () => {
    const bytes = goldenFile('names.tar.gz');
    for (const bad of [bytes.subarray(0, 200), flipped(bytes, 300)]) {
      const entries = updatedEntries(readTarball([bad], KEY), new Map(), 0);
      await expect(storeTarball(scratch, entries)).rejects.toMatchObject({
        code: 'DAMAGED_ARCHIVE',
      });
    }
    expect(fs.readdirSync(scratch)).toEqual([]);
  });
});

function flipped(bytes: Buffer, at: number): Buffer {
  const changed = Buffer.from(bytes);
  changed[at] = (changed[at] ?? 0) ^ 0xff;
  return changed;
}

describe('the contents of a backup', () => {
  it('are asked for in any order', async () => {
    const list = goldenFile('bucket-full1/full1.tar.gz.list').toString().trim().split('\n');
    await using writer = await TarballWriter.create(scratch);
    for (const path of list) await writer.add(path, Buffer.from(path));
    await using file = await writer.finish();
    await using contents = await Contents.open(file.read(), KEY, { directory: scratch });
    const directories = [...contents.directories()];
    expect(directories.filter(({ groupResource }) => groupResource === 'namespaces')).toEqual([
      { groupResource: 'namespaces', version: undefined, isPreferred: true, namespace: '' },
      { groupResource: 'namespaces', version: 'v1', isPreferred: true, namespace: '' },
    ]);
    const listed = goldenJson('bucket-full1/full1-resource-list.json') as Record<string, string[]>;
    const events = { groupResource: 'events', version: undefined, isPreferred: true };
    expect(contents.names({ ...events, namespace: 'app' }).map((name) => `app/${name}`)).toEqual(
      listed['v1/Event'],
    );
    expect(contents.names({ ...events, namespace: 'other' })).toEqual([]);
    for (const directory of directories) {
      for (const name of contents.names(directory)) {
        const place: ItemPlace = { ...directory, name };
        expect(contents.has(place)).toBe(true);
        expect((await contents.load(place))?.toString()).toBe(
          `${directoryPath(directory)}/${name}.json`,
        );
      }
    }
    expect(await contents.load({ ...NODE, name: 'none' })).toBeUndefined();
    expect(contents.isEmpty).toBe(false);
  });

  it('take little memory for each item', async () => {
    await using writer = await TarballWriter.begin(scratch);
    const namespace = 'a-namespace-with-a-name-of-the-usual-length';
    for (let i = 0; i < 20_000; i++) {
      const name = `a-name-of-the-usual-length-${i}`;
      await writer.addItem({ ...POD, namespace, name }, Buffer.from('{}'));
    }
    await using file = await writer.finish();
    const collect = runInNewContext('gc') as () => void;
    const used = (): number => {
      // What buffers are in is free only after the second one.
      for (let i = 0; i < 3; i++) collect();
      const { heapUsed, arrayBuffers } = process.memoryUsage();
      return heapUsed + arrayBuffers;
    };
    const before = used();
    await using contents = await Contents.open(file.read(), KEY, { directory: scratch });
    const each = (used() - before) / 40_000;
    expect(each).toBeLessThan(115);
    expect(contents.isEmpty).toBe(false);
  }, 60_000);

  it('may have the longest names, which are too long for files', async () => {
    await using writer = await TarballWriter.begin(scratch);
    const place = { ...POD, name: 'n'.repeat(253) };
    await writer.addItem(place, Buffer.from('{}'));
    await using file = await writer.finish();
    await using contents = await Contents.open(file.read(), KEY, { directory: scratch });
    expect((await contents.load(place))?.toString()).toBe('{}');
  });

  it('of an old version without versions of APIs are read, and of a backup without items', async () => {
    const tar = async (...paths: string[]): Promise<Buffer> =>
      gzipSync(
        Buffer.concat(
          await Array.fromAsync(
            writeTar(paths.map((path) => ({ path, bytes: Buffer.from('{}'), mtime: 0 }))),
          ),
        ),
      );
    const old = await tar('resources/pods/namespaces/app/p.json', 'resources/nodes/cluster/n.json');
    await using contents = await Contents.open([old], KEY, { directory: scratch });
    expect(contents.formatVersion).toBe('');
    expect([...contents.directories()]).toHaveLength(2);
    await using empty = await Contents.open([await tar('metadata/version')], KEY, {
      directory: scratch,
    });
    expect(empty.isEmpty).toBe(true);
  });

  it('that are there twice, as several workers of a Velero server store them, are the last one', async () => {
    const path = 'resources/pods/namespaces/app/p.json';
    const entries = ['{"first":1}', '{"last":22}'].flatMap((text, at) => [
      { path, bytes: Buffer.from(text), mtime: 0 },
      { path: `resources/nodes/cluster/n${at}.json`, bytes: Buffer.from('{}'), mtime: 0 },
    ]);
    const tar = gzipSync(Buffer.concat(await Array.fromAsync(writeTar(entries))));
    await using contents = await Contents.open([tar], KEY, { directory: scratch });
    const directory = { ...POD, version: undefined };
    expect(contents.names(directory)).toEqual(['p']);
    expect((await contents.load({ ...directory, name: 'p' }))?.toString()).toBe('{"last":22}');
    expect([...contents.directories()]).toHaveLength(2);
    // A writer of the tarball would have to choose between the two.
    await expect(Array.fromAsync(readTarball([tar], KEY))).rejects.toThrow('is there twice');
  });

  it('of a directory that is named like a version are told apart', () => {
    for (const path of [
      'resources/pods/namespaces/app',
      'resources/pods/v1/namespaces/app',
      'resources/pods/v1-preferredversion/namespaces/app',
      'resources/nodes/cluster',
      'resources/nodes/v1/cluster',
      'resources/x/namespaces/cluster',
    ]) {
      const directory = parseDirectory(path);
      expect(directory && directoryPath(directory), path).toBe(path);
    }
    for (const path of [
      '',
      'metadata',
      'resources/pods',
      'resources/a/b/c/namespaces/d',
      'x/a/cluster',
    ]) {
      expect(parseDirectory(path), path).toBeUndefined();
    }
  });
});

describe('what unpacks to too much', () => {
  const refused = { code: 'DAMAGED_ARCHIVE', message: expect.stringContaining(KEY) as string };

  it('is refused by its ratio, long before it is whole', async () => {
    let read = 0;
    async function* zeros(): AsyncGenerator<Uint8Array> {
      const member = gzipSync(Buffer.alloc(16 * MIB));
      for (let i = 0; i < 1000; i++) {
        read += member.length;
        yield member;
        await Promise.resolve();
      }
    }
    const unpack = async (): Promise<void> => {
      for await (const piece of gunzipped(zeros(), {
        key: KEY,
        bytesMax: 2 ** 40,
        freeBytes: 64 * MIB,
      })) {
        expect(piece.length).toBeLessThanOrEqual(MIB);
      }
    };
    await expect(unpack()).rejects.toMatchObject(refused);
    expect(read).toBeLessThan(MIB);
  });

  it('is not refused for items of one letter, which anybody may have in a cluster', async () => {
    const writer = await TarballWriter.begin(scratch);
    const bytes = Buffer.alloc(MIB, 'a');
    for (let i = 0; i < 120; i++) await writer.addItem({ ...POD, name: `p${i}` }, bytes);
    await using file = await writer.finish();
    expect(file.lengthBytes).toBeLessThan((240 * MIB) / 500);
    await using contents = await Contents.open(file.read(), KEY, { directory: scratch });
    expect(await contents.load({ ...POD, name: 'p119' })).toEqual(bytes);
  }, 60_000);

  it('is refused by its length', async () => {
    const limits = { ...CONTENT_LIMITS, unpackedBytesMax: MIB };
    await expect(
      Array.fromAsync(readTarball([await bombOf(3)], KEY, limits)),
    ).rejects.toMatchObject(refused);
  });

  it('is no gzip file, or breaks off: told apart from errors of the bucket', async () => {
    const bytes = goldenFile('names.tar.gz');
    expect(gunzipSync(bytes).length).toBeGreaterThan(1000);
    for (const bad of [
      Buffer.alloc(0),
      Buffer.from('x'),
      bytes.subarray(0, -1),
      flipped(bytes, 20),
    ]) {
      await expect(Array.fromAsync(readTarball([bad], KEY))).rejects.toMatchObject(refused);
    }
    const broken = async function* (): AsyncGenerator<Uint8Array> {
      yield bytes.subarray(0, 100);
      await Promise.resolve();
      throw new Error('the bucket is away');
    };
    await expect(Array.fromAsync(readTarball(broken(), KEY))).rejects.toThrow('the bucket is away');
  });
});

/** Bytes of this process: the heap, and buffers outside of it. */
function held(): number {
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
}
