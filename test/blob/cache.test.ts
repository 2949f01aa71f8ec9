import { execFileSync, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import {
  blobId,
  type BlobStorage,
  faulty,
  metered,
  type MeteredStorage,
  openStorage,
  withCache,
} from '../../src/blob/index.ts';
import { storageContract } from '../contract/storage.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('cache');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
let next = 0;
const METADATA = blobId('q0123456789abcdef0123456789abcdef-s0');
const INDEX = blobId('xn0_0123456789abcdef0123456789abcdef-s0-c1');
const DATA = blobId('p0123456789abcdef0123456789abcdef-s0');

storageContract('with a cache', async () =>
  withCache(await openStorage(join(work, String(next++)), { create: true }), {
    directory: join(work, `cache-${next++}`),
    bytesMax: 1 << 20,
    logger: silentLogger,
  }),
);

const TOTAL = 'total-on-disk';
const TAG = 'CACHEDIR.TAG';
const namesIn = (directory: string): string[] =>
  fs.readdirSync(directory).filter((name) => name !== TAG);
const inBlocks = (bytes: number): number => Math.ceil(bytes / 4096) * 4096;
/** Disk usage of the entries. */
const sizeOf = (directory: string): number =>
  fs
    .readdirSync(directory, { withFileTypes: true })
    .filter((entry) => entry.isFile() && ![TOTAL, TAG].includes(entry.name))
    .reduce((sum, { name }) => sum + inBlocks(fs.statSync(join(directory, name)).size), 0);

describe('the cache on disk', () => {
  let inner: MeteredStorage;
  let directory: string;
  beforeEach(async () => {
    inner = metered(await openStorage(join(work, String(next++)), { create: true }));
    directory = join(work, `cache-${next++}`);
  });
  const open = (bytesMax = 1 << 20) =>
    withCache(inner, { directory, bytesMax, logger: silentLogger });
  const bytes = noise('cached', 5000);

  it('serves metadata and indexes again, also to the next process; file data passes it by', async () => {
    for (const id of [METADATA, INDEX, DATA]) await inner.putBlob(id, [bytes]);
    for (let process = 0; process < 2; process++) {
      const storage = await open();
      for (let i = 0; i < 2; i++) {
        for (const id of [METADATA, DATA]) {
          const range = await storage.getBlob(id, { offset: 10, lengthBytes: 100 });
          expect(bytes.subarray(10, 110).equals(range)).toBe(true);
        }
        expect(bytes.equals(await storage.getBlob(INDEX))).toBe(true);
        // Entries are written beside the caller.
        await storage.close();
      }
    }
    // Two of the cacheable, once each; the data four times.
    expect(inner.counters.gets).toBe(6);
  });

  it('serves blobs that an earlier process put, in the ranges that repositories read', async () => {
    const pack = noise('pack', (2 << 20) + 300);
    const writer = await open(64 << 20);
    for (const [id, length] of [
      [METADATA, 1000],
      [INDEX, 77],
      [DATA, 5],
    ] as const) {
      await writer.putBlob(id, [pack.subarray(0, length), pack.subarray(length)]);
    }
    await writer.close();
    const reader = await open(64 << 20);
    for (const [offset, lengthBytes] of [
      [0, 1 << 20],
      [1 << 20, 1 << 20],
      [2 << 20, 300],
    ] as const) {
      const block = await reader.getBlob(METADATA, { offset, lengthBytes });
      expect(pack.subarray(offset, offset + lengthBytes).equals(block)).toBe(true);
    }
    expect(pack.equals(await reader.getBlob(INDEX))).toBe(true);
    expect(inner.counters.gets).toBe(0);
    await reader.getBlob(DATA);
    expect(inner.counters.gets).toBe(1);
    await reader.close();
    expect(namesIn(directory).filter((name) => name.startsWith('p'))).toEqual([]);
  });

  it('keeps nothing of a put that failed', async () => {
    const refusing = faulty(inner, ({ operation }) => {
      if (operation === 'put') throw new Error('refused');
    });
    const storage = await withCache(refusing, {
      directory,
      bytesMax: 1 << 20,
      logger: silentLogger,
    });
    await expect(storage.putBlob(METADATA, [bytes])).rejects.toThrow('refused');
    await storage.close();
    expect(namesIn(directory)).toEqual([]);
  });

  it('spares the next backup all reads of metadata that the last one wrote', async () => {
    const [repo, source] = [join(work, `written-${next++}`), join(work, `source-${next++}`)];
    fs.mkdirSync(join(source, 'below'), { recursive: true });
    fs.writeFileSync(join(source, 'below', 'file'), bytes);
    await createTest(repo);
    const metadataReads: string[] = [];
    const run = async (): Promise<void> => {
      metadataReads.length = 0;
      const wrap = (storage: BlobStorage): Promise<BlobStorage> =>
        withCache(
          faulty(storage, ({ operation, id, when }) => {
            if (operation === 'get' && when === 'before' && /^(q|x[nrs])/.test(id)) {
              metadataReads.push(id);
            }
          }),
          { directory, bytesMax: 64 << 20, logger: silentLogger },
        );
      await using repository = await openTest(repo, { wrap });
      await backUp(repository, source);
    };
    await run();
    await run();
    expect(metadataReads).toEqual([]);
  });

  describe('with file data', () => {
    const openWithData = (bytesMax = 1 << 20) =>
      withCache(inner, { directory, bytesMax, logger: silentLogger, keepsData: true });
    const range = (offset: number, lengthBytes: number): Buffer =>
      bytes.subarray(offset, offset + lengthBytes);

    it('serves any range that earlier reads cover, also to the next process', async () => {
      await inner.putBlob(DATA, [bytes]);
      await using first = await openWithData();
      await first.getBlob(DATA, { offset: 100, lengthBytes: 900 });
      await first.getBlob(DATA, { offset: 1000, lengthBytes: 500 });
      const { gets } = inner.counters;
      await using second = await openWithData();
      const into = new Uint8Array(5000);
      const found = await second.getBlob(DATA, { offset: 200, lengthBytes: 1200, into });
      expect(range(200, 1200).equals(found)).toBe(true);
      expect(found.buffer).toBe(into.buffer);
      expect(inner.counters.gets).toBe(gets);
      const more = await second.getBlob(DATA, { offset: 1400, lengthBytes: 200 });
      expect(range(1400, 200).equals(more)).toBe(true);
      expect(inner.counters.gets).toBe(gets + 1);
    });

    it('reads a damaged or shortened entry again, and keeps the new bytes', async () => {
      await inner.putBlob(DATA, [bytes]);
      const read = async (fresh = false): Promise<Uint8Array> => {
        await using storage = await openWithData();
        return await storage.getBlob(DATA, { offset: 0, lengthBytes: 1000, fresh });
      };
      await read();
      const [name = ''] = fs.readdirSync(directory).filter((each) => each.endsWith('.data'));
      fs.truncateSync(join(directory, name), 10);
      expect(range(0, 1000).equals(await read())).toBe(true);
      fs.writeFileSync(join(directory, name), Buffer.alloc(1000));
      // Without a digest the reader notices, and reads again past the cache.
      expect(range(0, 1000).equals(await read(true))).toBe(true);
      expect(range(0, 1000).equals(await read())).toBe(true);
    });

    it('forgets a deleted blob, and passes reads on when another process evicted an entry', async () => {
      await inner.putBlob(DATA, [bytes]);
      await using storage = await openWithData();
      const read = (): Promise<Uint8Array> => storage.getBlob(DATA, { offset: 0, lengthBytes: 99 });
      await read();
      for (const name of fs.readdirSync(directory)) fs.rmSync(join(directory, name));
      expect(range(0, 99).equals(await read())).toBe(true);
      await storage.deleteBlob(DATA);
      await expect(read()).rejects.toMatchObject({ code: 'BLOB_NOT_FOUND' });
    });

    it('takes half of the cache, replaces what older processes used, and not its own', async () => {
      const bytesMax = 1 << 20;
      const part = noise('part', 60_000);
      const ids = Array.from({ length: 20 }, (_, i) =>
        blobId(`p${String(i).padStart(32, '0')}-s0`),
      );
      for (const id of ids) await inner.putBlob(id, [part]);
      const restore = async (wanted: typeof ids): Promise<number> => {
        const { gets } = inner.counters;
        await using storage = await openWithData(bytesMax);
        for (const id of wanted) {
          const found = await storage.getBlob(id, { offset: 0, lengthBytes: part.length });
          expect(part.equals(found)).toBe(true);
        }
        return inner.counters.gets - gets;
      };
      expect(await restore(ids)).toBe(20);
      expect(sizeOf(directory)).toBeLessThanOrEqual(bytesMax / 2);
      const again = await restore(ids);
      expect(again).toBeLessThan(14);
      // A moment later, so that the times of use differ.
      await new Promise((resolve) => setTimeout(resolve, 20));
      const last = ids.slice(-8);
      expect(await restore(last)).toBe(8);
      expect(await restore(last)).toBe(0);
      expect(sizeOf(directory)).toBeLessThanOrEqual(bytesMax / 2);
    });

    it('does not count twice what another process evicted', async () => {
      const bytesMax = 1 << 20;
      const part = noise('evicted', 50_000);
      const ids = Array.from({ length: 16 }, (_, i) =>
        blobId(`p${String(i).padStart(32, '0')}-s0`),
      );
      for (const id of ids) await inner.putBlob(id, [part]);
      const read = async (storage: BlobStorage, wanted: typeof ids): Promise<void> => {
        for (const id of wanted) await storage.getBlob(id, { offset: 0, lengthBytes: part.length });
      };
      {
        await using earlier = await openWithData(bytesMax);
        await read(earlier, ids.slice(0, 8));
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
      await using storage = await openWithData(bytesMax);
      await read(storage, ids.slice(7, 8));
      // As another process does: it removes entries and corrects the total.
      const gone = fs.readdirSync(directory).filter((name) => /^p0*[0-3]-s0/.test(name));
      for (const name of gone) fs.rmSync(join(directory, name));
      expect(gone).toHaveLength(4);
      fs.writeFileSync(join(directory, TOTAL), String(sizeOf(directory)));
      await read(storage, ids.slice(8));
      const total = Number(fs.readFileSync(join(directory, TOTAL), 'utf8'));
      expect(total).toBeGreaterThanOrEqual(sizeOf(directory));
      expect(sizeOf(directory)).toBeLessThanOrEqual(bytesMax / 2);
    });

    it('looks up the times of its entries once, not for every read', async () => {
      const count = 100;
      const ids = Array.from({ length: 2 * count }, (_, i) =>
        blobId(`p${String(i).padStart(32, '0')}-s0`),
      );
      for (const id of ids) await inner.putBlob(id, [bytes]);
      const restore = async (wanted: typeof ids): Promise<void> => {
        // Room for some 100 entries of two blocks.
        await using storage = await openWithData(200 * 8192);
        for (const id of wanted) await storage.getBlob(id, { offset: 0, lengthBytes: 5000 });
      };
      await restore(ids.slice(0, count));
      await new Promise((resolve) => setTimeout(resolve, 20));
      const looks = vi.spyOn(fs.promises, 'stat');
      syncBuiltinESMExports();
      try {
        await restore(ids.slice(count));
        const asked = looks.mock.calls.filter(([path]) => String(path).startsWith(directory));
        expect(asked.length).toBeGreaterThan(0);
        expect(asked.length).toBeLessThan(4 * count);
      } finally {
        looks.mockRestore();
        syncBuiltinESMExports();
      }
    });
  });

  it('asks for the length of a metadata pack once, but looks whether a blob is there', async () => {
    await inner.putBlob(METADATA, [bytes]);
    let looks = 0;
    const counting = faulty(inner, ({ operation, when }) => {
      if (operation === 'metadata' && when === 'before') looks++;
    });
    const options = { directory, bytesMax: 1 << 20, logger: silentLogger };
    for (let process = 0; process < 3; process++) {
      await using storage = await withCache(counting, options);
      const metadata = await storage.getMetadata(METADATA, { mayBeCached: true });
      expect(metadata).toEqual(await inner.getMetadata(METADATA));
    }
    expect(looks).toBe(1);
    await inner.deleteBlob(METADATA);
    await using storage = await withCache(counting, options);
    const look = storage.getMetadata(METADATA);
    await expect(look).rejects.toMatchObject({ code: 'BLOB_NOT_FOUND' });
  });

  it('never grows above its size, whatever is read, and keeps what was used last', async () => {
    const bytesMax = 64 << 10;
    const storage = await open(bytesMax);
    for (let i = 0; i < 40; i++) {
      const id = blobId(`q${String(i).padStart(32, '0')}-s0`);
      await inner.putBlob(id, [bytes]);
      await storage.getBlob(id);
      await storage.getBlob(blobId(`q${'0'.repeat(32)}-s0`));
      await storage.close();
      expect(sizeOf(directory)).toBeLessThanOrEqual(bytesMax);
    }
    const kept = fs.readdirSync(directory).filter((name) => name.startsWith('q'));
    expect(kept.some((name) => name.startsWith(`q${'0'.repeat(32)}`))).toBe(true);
    expect(kept.length).toBeGreaterThan(5);
  });

  it('counts what small entries take of the disk, not their lengths', async () => {
    const bytesMax = 100 * 4096;
    await inner.putBlob(METADATA, [bytes]);
    const storage = await open(bytesMax);
    for (let offset = 0; offset < 300; offset++) {
      await storage.getBlob(METADATA, { offset, lengthBytes: 100 });
      if (offset % 5 === 0) await storage.close();
    }
    await storage.close();
    const names = fs.readdirSync(directory).filter((name) => name.startsWith('q'));
    expect(names.length).toBeGreaterThan(50);
    const blocks = names.map((name) => fs.statSync(join(directory, name)).blocks * 512);
    expect(blocks.reduce((a, b) => a + b)).toBeLessThanOrEqual(bytesMax);
    expect(Number(fs.readFileSync(join(directory, TOTAL), 'utf8'))).toBe(sizeOf(directory));
  });

  it('forgets many deleted blobs at once, in their turn or at the end', async () => {
    const others = Array.from({ length: 100 }, (_, i) => blobId(`q${String(i).padStart(32, '0')}`));
    for (const id of [METADATA, INDEX, ...others]) await inner.putBlob(id, [bytes]);
    const storage = await open(64 << 20);
    for (const id of [METADATA, INDEX, ...others]) {
      await storage.getBlob(id, { offset: 1, lengthBytes: 10 });
      await storage.close();
    }
    for (const id of others) await storage.deleteBlob(id);
    for (const id of others) {
      const gone = storage.getBlob(id, { offset: 1, lengthBytes: 10 });
      await expect(gone).rejects.toMatchObject({ code: 'BLOB_NOT_FOUND' });
    }
    // Their entries are not looked for one by one.
    expect(namesIn(directory)).toHaveLength(103);
    await storage.close();
    const left = (): string[] => namesIn(directory).filter((name) => name !== TOTAL);
    expect(left()).toEqual([`${METADATA}.1.10`, `${INDEX}.1.10`].sort());
    await storage.deleteBlob(METADATA);
    for (let i = 0; i < 999; i++) await storage.deleteBlob(blobId(`q${i}`));
    expect(left()).toEqual([`${INDEX}.1.10`]);
    // The name may come back.
    await inner.putBlob(METADATA, [bytes]);
    await storage.getBlob(METADATA);
    await storage.close();
    expect(left()).toHaveLength(2);
  });

  it('is no part of a backup, also after it was full', async () => {
    for (const id of [METADATA, INDEX]) await inner.putBlob(id, [bytes]);
    const storage = await open(9000);
    for (const id of [METADATA, INDEX]) {
      for (let i = 0; i < 4; i++) await storage.getBlob(id, { offset: i, lengthBytes: 300 });
    }
    await storage.close();
    const repo = join(work, `home-${next++}`);
    await createTest(repo);
    await using repository = await openTest(repo);
    const { rootEntry } = await backUp(repository, directory);
    expect(rootEntry.summary).toMatchObject({ files: 0, size: 0 });
  });

  it('a blob too long for it passes it by', async () => {
    await inner.putBlob(METADATA, [noise('long', 20_000)]);
    const storage = await open(100_000);
    await storage.getBlob(METADATA);
    await storage.close();
    expect(namesIn(directory)).toEqual([]);
  });

  it.each([
    ['flipped', (file: Buffer) => Buffer.concat([file.subarray(0, -1), Buffer.of(1)])],
    ['cut short', (file: Buffer) => file.subarray(0, 1000)],
    ['emptied', () => Buffer.alloc(0)],
  ])('an entry that was %s by a crash is read again', async (_, damage) => {
    await inner.putBlob(METADATA, [bytes]);
    const storage = await open();
    await storage.getBlob(METADATA);
    await storage.close();
    const [name = ''] = fs.readdirSync(directory).filter((file) => file.startsWith('q'));
    const path = join(directory, name);
    fs.writeFileSync(path, damage(fs.readFileSync(path)));
    expect(bytes.equals(await storage.getBlob(METADATA))).toBe(true);
    await storage.close();
    expect(inner.counters.gets).toBe(2);
    await storage.getBlob(METADATA);
    expect(inner.counters.gets).toBe(2);
  });

  it('a lock that a dead process left is taken away, and a wrong total is counted anew', async () => {
    await inner.putBlob(METADATA, [bytes]);
    const storage = await open();
    const lock = join(directory, 'lock');
    fs.mkdirSync(lock);
    fs.utimesSync(lock, 1, 1);
    fs.writeFileSync(join(directory, TOTAL), 'nonsense');
    for (let i = 0; i < 2; i++) {
      await storage.getBlob(METADATA);
      await storage.close();
    }
    expect(fs.readdirSync(directory).some((name) => name.startsWith('q'))).toBe(true);
    expect(Number(fs.readFileSync(join(directory, TOTAL), 'utf8'))).toBe(sizeOf(directory));
  });

  it('a lock that a dead process left while the clock was days ahead is taken away too', async () => {
    await inner.putBlob(METADATA, [bytes]);
    const storage = await open();
    const lock = join(directory, 'lock');
    fs.mkdirSync(lock);
    const ahead = Date.now() / 1000 + 5 * 24 * 3600;
    fs.utimesSync(lock, ahead, ahead);
    for (let i = 0; i < 2; i++) {
      await storage.getBlob(METADATA);
      await storage.close();
    }
    expect(fs.existsSync(lock)).toBe(false);
    expect(fs.readdirSync(directory).some((name) => name.startsWith('q'))).toBe(true);
  });

  it('what is deleted is forgotten, and a disk that refuses is no failure', async () => {
    await inner.putBlob(METADATA, [bytes]);
    const storage = await open();
    await storage.getBlob(METADATA);
    await storage.close();
    await storage.deleteBlob(METADATA);
    await expect(storage.getBlob(METADATA)).rejects.toMatchObject({ code: 'BLOB_NOT_FOUND' });
    await inner.putBlob(METADATA, [bytes]);
    fs.rmSync(directory, { recursive: true });
    expect(bytes.equals(await storage.getBlob(METADATA))).toBe(true);
    await storage.close();
    fs.writeFileSync(join(work, 'a-file'), '');
    await expect(
      withCache(inner, { directory: join(work, 'a-file/x'), bytesMax: 1, logger: silentLogger }),
    ).rejects.toMatchObject({ code: 'CACHE_UNUSABLE' });
  });

  it('many processes share it and keep its size', async () => {
    const bytesMax = 200_000;
    const root = join(work, `shared-${next++}`);
    const script = `
      import { openStorage, withCache, blobId } from '${new URL('../../src/blob/index.ts', import.meta.url).pathname}';
      import { silentLogger } from '${new URL('../../src/base/index.ts', import.meta.url).pathname}';
      const inner = await openStorage('${root}', { create: true });
      const storage = await withCache(inner, { directory: '${directory}', bytesMax: ${bytesMax}, logger: silentLogger });
      const mine = Number(process.argv[1]);
      for (let i = 0; i < 60; i++) {
        const id = blobId('q' + String((i * 7 + mine) % 90).padStart(32, '0') + '-s0');
        const data = Buffer.alloc(4000 + mine, i);
        if (mine === 0) await inner.putBlob(id, [data]);
        await storage.getBlob(id).catch(() => undefined);
        if (i % 10 === 0) await storage.close();
      }
      await storage.close();`;
    const run = (i: number) =>
      new Promise<number | null>((resolve) => {
        const child = spawn(
          process.execPath,
          ['--input-type=module', '-e', script, '--', String(i)],
          {
            stdio: 'inherit',
          },
        );
        child.once('exit', resolve);
      });
    const watching = setInterval(() => {
      if (fs.existsSync(directory)) largest = Math.max(largest, tolerantSize(directory));
    }, 2);
    let largest = 0;
    const codes = await Promise.all([0, 1, 2, 3].map(run));
    clearInterval(watching);
    expect(codes).toEqual([0, 0, 0, 0]);
    expect(largest).toBeLessThanOrEqual(bytesMax);
    expect(sizeOf(directory)).toBeGreaterThan(bytesMax / 4);
    expect(execFileSync('ls', [directory]).toString()).not.toContain('.tmp.');
  });
});

/** Files come and go while they are counted. */
function tolerantSize(directory: string): number {
  let sum = 0;
  for (const name of fs.readdirSync(directory)) {
    if ([TOTAL, TAG, 'lock'].includes(name)) continue;
    sum += inBlocks(fs.statSync(join(directory, name), { throwIfNoEntry: false })?.size ?? 0);
  }
  return sum;
}
