import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { posix, silentLogger } from '../../../src/base/index.ts';
import { Arena, type Span } from '../../../src/codec/index.ts';
import { type Repository, SLAB_BYTES } from '../../../src/repository/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import { type InPlaceCounters, restoreTreeInPlace } from '../../../src/uploader/index.ts';
import {
  directBytes,
  openForDirectReads,
  readDirectly,
} from '../../../src/uploader/in-place/direct-reads.ts';
import { RangeComparer } from '../../../src/uploader/in-place/range-comparer.ts';
import { SharedSlabs } from '../../../src/uploader/in-place/shared-slabs.ts';
import type { ThreadPoolFactory } from '../../../src/volume-files/index.ts';
import { createInProcessPool } from '../../../src/workers/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';

const MIB = 1 << 20;
const work = tempDirectory('direct-reads');
const at = (...names: string[]): string => join(work, ...names);
const original = noise('direct', 6 * MIB + 777);
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

/** Takes a file out of the page cache, where its file system lets go of it. */
function evict(path: string): void {
  execFileSync('dd', [`if=${path}`, 'iflag=nocache', 'count=0', 'status=none']);
}

describe('ranges that are read past the page cache', () => {
  const arena = new Arena(8 * SLAB_BYTES);
  const slabs = [arena.allocate(SLAB_BYTES), arena.allocate(SLAB_BYTES)] as const;
  let descriptor: number;
  beforeAll(() => {
    fs.writeFileSync(at('file'), original);
    descriptor = fs.openSync(at('file'), 'r');
  });
  afterAll(() => {
    fs.closeSync(descriptor);
  });

  it('have the bytes of the file, at any offset and length, also over slabs and behind its end', async () => {
    await using file = await openForDirectReads(descriptor, original.length);
    // Without direct reads, as on some file systems, there is nothing to look at.
    if (!file) return;
    const longer = Buffer.concat([original, Buffer.alloc(2 * MIB)]);
    const places = [
      [0, 1],
      [4095, 2],
      [5, 3 * MIB + 1],
      [3 * MIB + 6, 3 * MIB + 700],
      [original.length - 10, 100],
      [original.length + 5000, 4096],
    ] as const;
    const room = new SharedSlabs(slabs);
    for (const slab of slabs) arena.bytes.fill(0xee, slab, slab + SLAB_BYTES);
    const reads = places.map(async ([offset, length]) => {
      const range = { descriptor, direct: file.fd, offset, length };
      const taken = room.take(directBytes(range));
      if (!taken) throw new Error('there is room for all');
      const spans = await readDirectly(range, taken.spans, arena.bytes);
      const found = Buffer.concat(spans.map((span) => arena.view(span)));
      expect(found.equals(longer.subarray(offset, offset + length)), `${offset}`).toBe(true);
    });
    await Promise.all(reads);
  });

  it('are refused where the device wants other borders; what cannot be read is told as the system tells it', async () => {
    await using file = await openForDirectReads(descriptor, original.length);
    if (!file) return;
    const range = { descriptor, direct: file.fd, offset: 0, length: MIB };
    const read = (address: number, direct = file.fd): Promise<Span[]> =>
      readDirectly({ ...range, direct }, [{ address, length: MIB }], arena.bytes);
    await expect(read(slabs[0] + 1)).rejects.toMatchObject({ code: 'EINVAL' });
    await expect(read(slabs[0], 999_999)).rejects.toMatchObject({ code: 'EBADF' });
    expect(await read(slabs[0])).toEqual([{ address: slabs[0], length: MIB }]);
  });
});

describe('a restore in place of long contents', () => {
  let repository: Repository;
  let root: DirectoryEntry;
  /** Tasks by name. */
  let tasks: string[] = [];
  const factory: ThreadPoolFactory = (keys, arena) =>
    new Proxy(createInProcessPool(keys, arena), {
      get(pool, name) {
        const value: unknown = Reflect.get(pool, name, pool);
        if (typeof value !== 'function') return value;
        return (...given: unknown[]): unknown => {
          tasks.push(String(name));
          return (value as (...all: unknown[]) => unknown).apply(pool, given);
        };
      },
    });
  beforeAll(async () => {
    fs.mkdirSync(at('tree'));
    fs.writeFileSync(at('tree/long'), original);
    fs.writeFileSync(at('tree/short'), 'short');
    await createTest(at('repo'), { splitter: 'FIXED-1M' });
    repository = await openTest(at('repo'), { factory });
    root = (await backUp(repository, at('tree'))).rootEntry;
  });
  afterAll(() => repository.close());
  beforeEach(() => {
    tasks = [];
  });

  const inPlace = (dryRun = false): Promise<InPlaceCounters> =>
    restoreTreeInPlace(repository, root, at('tree'), {
      logger: silentLogger,
      signal: new AbortController().signal,
      dryRun,
    });

  it.each([true, false])(
    'finds a changed byte anywhere, with the file in the page cache or not (%s)',
    async (isCached) => {
      for (const place of [0, 3 * MIB - 1, original.length - 1]) {
        const file = fs.openSync(at('tree/long'), 'r+');
        fs.writeSync(file, Buffer.of((original[place] ?? 0) ^ 1), 0, 1, place);
        fs.fsyncSync(file);
        if (!isCached) evict(at('tree/long'));
        const cached = posix().cachedBytes(file, 0, original.length);
        fs.closeSync(file);
        tasks = [];
        const { bytesWritten, changed } = await inPlace();
        expect([changed, bytesWritten]).toEqual([1, place > 6 * MIB ? 777 : MIB]);
        expect(fs.readFileSync(at('tree/long')).equals(original)).toBe(true);
        // Data in memory is not read from the storage again.
        if (cached === 0) expect(tasks).toContain('hashPartly');
        if ((cached ?? 0) >= original.length) expect(tasks).not.toContain('hashPartly');
      }
    },
  );

  it('sees what was written a moment ago and is not on the disk yet', async () => {
    fs.writeFileSync(at('tree/long'), Buffer.concat([noise('other', MIB), original.subarray(MIB)]));
    expect(await inPlace(true)).toMatchObject({ changed: 1, bytesDifferent: MIB });
    expect(await inPlace()).toMatchObject({ changed: 1, bytesWritten: MIB });
    expect(fs.readFileSync(at('tree/long')).equals(original)).toBe(true);
  });

  it.each([
    ['the device wants other borders', (slabs: readonly number[]) => slabs.map((slab) => slab + 1)],
    ['it is longer than all memory for it', (slabs: readonly number[]) => slabs.slice(0, 1)],
  ])('is read by threads where %s', async (_, slabsOf) => {
    const { dataPath, codec } = repository;
    if (!dataPath) throw new Error('a repository with a data path');
    const slabAddresses = slabsOf(dataPath.slabAddresses);
    const comparer = new RangeComparer(
      { dataPath: { ...dataPath, slabAddresses } },
      new AbortController().signal,
    );
    fs.writeFileSync(at('other'), original);
    const file = fs.openSync(at('other'), 'r');
    fs.fsyncSync(file);
    evict(at('other'));
    const direct = await openForDirectReads(file, original.length);
    const length = 5 * MIB;
    const hash = codec.hasher.hash([original.subarray(3, 3 + length)]);
    const range = { descriptor: file, length, hash };
    const looks = [3, 4, 3].map((offset) => comparer.isEqual({ ...range, offset }, direct?.fd));
    expect(await Promise.all(looks)).toEqual([true, false, true]);
    expect(tasks).toContain('compareRanges');
    expect(tasks).not.toContain('hashPartly');
    await direct?.close();
    fs.closeSync(file);
  });
});
