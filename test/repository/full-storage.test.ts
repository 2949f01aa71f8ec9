import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  CodedError,
  HOUR_NS,
  OffsetClock,
  silentLogger,
  systemClock,
} from '../../src/base/index.ts';
import {
  blobId,
  type BlobStorage,
  faulty,
  keepReserve,
  listAll,
  withReserve,
} from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import { writeOnce } from '../../src/blob/wrappers/write-once.ts';
import {
  keepReserveOf,
  type MaintenanceReport,
  type Repository,
  runMaintenance,
} from '../../src/repository/index.ts';
import {
  forgetSnapshots,
  listSnapshots,
  planGarbageCollection,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('full-storage');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const { signal } = new AbortController();
const RESERVE = blobId('reserve-for-deletes');

const bytesIn = async (storage: BlobStorage): Promise<number> =>
  (await listAll(storage, '')).reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);

interface Quota {
  bytes: number;
}

/** A storage with a quota. */
class LimitedStorage extends ForwardingStorage {
  readonly #quota: Quota;

  constructor(inner: BlobStorage, quota: Quota) {
    super(inner);
    this.#quota = quota;
  }

  override async putBlob(...parameters: Parameters<BlobStorage['putBlob']>): Promise<void> {
    const length = parameters[1].reduce((sum, piece) => sum + piece.length, 0);
    const isFull = (await bytesIn(this.inner)) + length > this.#quota.bytes;
    if (isFull) throw new CodedError('STORAGE_FULL', `no space left for ${parameters[0]}`);
    await super.putBlob(...parameters);
  }
}

async function reserveIn(storage: BlobStorage): Promise<number> {
  const [reserve] = await listAll(storage, RESERVE);
  return reserve?.lengthBytes ?? 0;
}

describe('the reserve', () => {
  const MIB = 1 << 20;
  /** A storage with 1 MiB of data and a reserve of 1 MiB that takes nothing more. */
  async function fullStorage(): Promise<{ storage: BlobStorage; quota: Quota }> {
    const quota = { bytes: Infinity };
    const storage = new LimitedStorage(new MemoryStorage(), quota);
    await storage.putBlob(blobId('p1'), [Buffer.alloc(MIB)]);
    await keepReserve(storage, MIB);
    quota.bytes = 2 * MIB;
    return { storage, quota };
  }

  const index = [Buffer.alloc(10_000)];

  it('is released once for puts at the same time, and comes back as large as fits', async () => {
    const { storage } = await fullStorage();
    const freeing = withReserve(storage);
    const ids = Array.from({ length: 8 }, (_, at) => blobId(`xn${at}`));
    await freeing.freeRoom(async () => {
      await Promise.all(ids.map((id) => freeing.putBlob(id, index)));
      expect(await reserveIn(storage)).toBe(0);
    });
    expect(await reserveIn(storage)).toBe(0.75 * MIB);
  });

  it('comes back when the task fails', async () => {
    const { storage } = await fullStorage();
    const freeing = withReserve(storage);
    const freed = freeing.freeRoom(async () => {
      await freeing.putBlob(blobId('xn1'), index);
      throw new Error('canceled');
    });
    await expect(freed).rejects.toThrow('canceled');
    expect(await reserveIn(storage)).toBe(0.75 * MIB);
  });

  it('serves no put outside of such a task, as of a backup', async () => {
    const { storage } = await fullStorage();
    const freeing = withReserve(storage);
    await freeing.freeRoom(() => freeing.putBlob(blobId('xn1'), index));
    await freeing.freeRoom(() => Promise.resolve());
    const put = freeing.putBlob(blobId('xn2'), [Buffer.alloc(0.5 * MIB)]);
    await expect(put).rejects.toMatchObject({ code: 'STORAGE_FULL' });
    expect(await reserveIn(storage)).toBe(0.75 * MIB);
  });

  it('grows to its size again when there is room', async () => {
    const { storage, quota } = await fullStorage();
    const freeing = withReserve(storage);
    const large = [Buffer.alloc(0.8 * MIB)];
    await freeing.freeRoom(() => freeing.putBlob(blobId('xn1'), large));
    expect(await reserveIn(storage)).toBeLessThan(0.2 * MIB);
    quota.bytes = 10 * MIB;
    await keepReserve(storage, MIB);
    expect(await reserveIn(storage)).toBe(MIB);
  });

  it('is left as it is when a larger one does not fit', async () => {
    const { storage, quota } = await fullStorage();
    quota.bytes += 1000;
    await keepReserve(storage, 3 * MIB);
    expect(await reserveIn(storage)).toBe(MIB);
  });

  it('is not for large packs, so that rewriting them leaves the room to index blobs', async () => {
    const { storage } = await fullStorage();
    const freeing = withReserve(storage);
    const pack = [Buffer.alloc(0.6 * MIB)];
    const refused = { code: 'STORAGE_FULL' };
    await freeing.freeRoom(async () => {
      await expect(freeing.putBlob(blobId('p2'), pack)).rejects.toMatchObject(refused);
      expect(await reserveIn(storage)).toBe(MIB);
      await freeing.putBlob(blobId('xn1'), index);
      // Now there is room, which is for index blobs.
      await expect(freeing.putBlob(blobId('p2'), pack)).rejects.toMatchObject(refused);
      await freeing.putBlob(blobId('q2'), index);
    });
  });

  it('gives half of itself to packs at most, also to many small ones', async () => {
    const { storage } = await fullStorage();
    const freeing = withReserve(storage);
    const pack = [Buffer.alloc(0.3 * MIB)];
    await freeing.freeRoom(async () => {
      await freeing.putBlob(blobId('xn1'), index);
      await freeing.putBlob(blobId('p2'), pack);
      await expect(freeing.putBlob(blobId('p3'), pack)).rejects.toMatchObject({
        code: 'STORAGE_FULL',
      });
      await freeing.putBlob(blobId('xn2'), index);
    });
  });

  it('serves two clients: the second one finds the room that the first one made', async () => {
    const { storage } = await fullStorage();
    const clients = [withReserve(storage), withReserve(storage)];
    const both = Promise.withResolvers<undefined>();
    let done = 0;
    await Promise.all(
      clients.map((client, at) =>
        client.freeRoom(async () => {
          await client.putBlob(blobId(`xn${at}`), index);
          if (++done === 2) both.resolve(undefined);
          await both.promise;
        }),
      ),
    );
    expect(await reserveIn(storage)).toBe(0.75 * MIB);
  });

  it('is gone after a kill, and its room serves the next command', async () => {
    const { storage } = await fullStorage();
    const [killed, next] = [withReserve(storage), withReserve(storage)];
    const put = Promise.withResolvers<undefined>();
    void killed.freeRoom(async () => {
      await killed.putBlob(blobId('xn1'), index);
      put.resolve(undefined);
      await new Promise(() => undefined);
    });
    await put.promise;
    expect(await reserveIn(storage)).toBe(0);
    await next.freeRoom(() => next.putBlob(blobId('xn2'), index));
    await keepReserve(storage, MIB);
    expect(await reserveIn(storage)).toBe(0.75 * MIB);
  });

  it('that a user removed keeps nobody from deleting while there is room', async () => {
    const { storage, quota } = await fullStorage();
    await storage.deleteBlob(RESERVE);
    const freeing = withReserve(storage);
    await freeing.freeRoom(() => freeing.putBlob(blobId('xn1'), index));
    quota.bytes = 0;
    const put = freeing.freeRoom(() => freeing.putBlob(blobId('xn2'), index));
    await expect(put).rejects.toThrow(/^no space left for xn2; .*make some MiB of room/);
  });

  it('that cannot be put, or cannot be looked for, fails nothing', async () => {
    for (const refused of ['put', 'metadata'] as const) {
      const storage = faulty(new MemoryStorage(), ({ operation }) => {
        if (operation === refused) throw new CodedError('STORAGE_DENIED', 'not allowed');
      });
      await keepReserve(storage, MIB);
      expect(await reserveIn(storage)).toBe(0);
    }
  });

  it('that cannot be deleted leaves the message of the full storage', async () => {
    const { storage } = await fullStorage();
    const denying = faulty(storage, ({ operation }) => {
      if (operation === 'delete') throw new CodedError('STORAGE_DENIED', 'not allowed');
    });
    const freeing = withReserve(denying);
    const put = freeing.freeRoom(() => freeing.putBlob(blobId('xn1'), index));
    await expect(put).rejects.toMatchObject({ code: 'STORAGE_FULL' });
  });

  it('is not made in storages that lock blobs or put none twice', async () => {
    const lockable = new MemoryStorage({ hasObjectLock: true });
    const storages = [
      writeOnce(new MemoryStorage()),
      Object.assign(lockable, { isLockable: () => Promise.resolve(true) }),
    ];
    for (const storage of storages) {
      await keepReserve(storage, MIB);
      expect(await listAll(storage, '')).toEqual([]);
    }
  });
});

describe('a full repository', () => {
  const [repo, tree] = [join(work, 'repo'), join(work, 'tree')];
  const quota = { bytes: Infinity };
  const clock = new OffsetClock(systemClock);
  const ids: string[] = [];

  const open = (): Promise<Repository> =>
    openTest(repo, {
      clock,
      wrap: (inner) => new LimitedStorage(atClock(repo, clock)(inner), quota),
    });

  const maintain = (repository: Repository): Promise<MaintenanceReport> =>
    runMaintenance(repository, {
      mode: 'full',
      safety: 'none',
      force: true,
      dryRun: false,
      signal,
      logger: silentLogger,
      collectGarbage: planGarbageCollection,
    });

  beforeAll(async () => {
    fs.mkdirSync(tree);
    await createTest(repo);
    await using repository = await open();
    await keepReserveOf(repository);
    for (const name of ['first', 'second', 'third']) {
      fs.writeFileSync(join(tree, 'file'), noise(name, 3_000_000));
      ids.push((await backUp(repository, tree)).id);
    }
    quota.bytes = await bytesIn(repository.storage);
    // A deletion in the second of its content is marked a second later, and no run drops it yet.
    clock.offsetNs += HOUR_NS;
  });

  it('takes no backup, and backups leave the reserve', async () => {
    const repository = await open();
    fs.writeFileSync(join(tree, 'file'), noise('fourth', 3_000_000));
    await expect(backUp(repository, tree)).rejects.toMatchObject({ code: 'STORAGE_FULL' });
    expect(await reserveIn(repository.storage)).toBe(512 << 10);
  });

  it('loses snapshots, and maintenance frees their room', async () => {
    await using deleting = await open();
    await forgetSnapshots(deleting, [ids[0] ?? ''], { signal });
    const before = await bytesIn(deleting.storage);
    expect(await reserveIn(deleting.storage)).toBeGreaterThan(0);
    clock.offsetNs += HOUR_NS;
    await using maintaining = await open();
    const { tasks } = await maintain(maintaining);
    const deleted = tasks.find(({ task }) => task === 'full-delete-blobs')?.stats;
    expect(deleted?.deletedPackCount).toBeGreaterThan(0);
    const rewritten = tasks.find(({ task }) => task === 'full-rewrite-contents');
    expect(rewritten?.skipped).toContain('no room left');
    await using reader = await open();
    expect(await bytesIn(reader.storage)).toBeLessThan(before - 2_000_000);
    expect(await reserveIn(reader.storage)).toBeGreaterThanOrEqual(256 << 10);
    const snapshots = await listSnapshots(reader);
    expect(snapshots.map(({ id }) => String(id)).sort()).toEqual(ids.slice(1).sort());
    const roots = snapshots.flatMap(({ rootEntry }) => rootEntry ?? []);
    expect((await verifyTrees(reader, roots, { readAll: true, signal })).problems).toEqual([]);
  });

  it.runIf(hasKopia)('works for the real Kopia, whose maintenance leaves the reserve', async () => {
    const kopia = new Kopia(PASSWORD).connect(repo);
    kopia.verifyAll();
    kopia.run('maintenance', 'set', '--owner=me');
    kopia.run('maintenance', 'run', '--full', '--safety=none');
    kopia.verifyAll();
    await using reader = await open();
    expect(await reserveIn(reader.storage)).toBeGreaterThanOrEqual(256 << 10);
  });

  it('without room to merge index blobs lets maintenance go on with what frees room', async () => {
    const refusing = (inner: BlobStorage): BlobStorage =>
      faulty(inner, ({ operation, id }) => {
        const isMerge = operation === 'put' && /^x[sr]/.test(id);
        if (isMerge) throw new CodedError('STORAGE_FULL', `no space left for ${id}`);
      });
    const openRefusing = (): Promise<Repository> =>
      openTest(repo, { clock, wrap: (inner) => refusing(atClock(repo, clock)(inner)) });
    // The first epoch is settled after two others.
    for (const epoch of [1, 2]) {
      await using writing = await openRefusing();
      await writing.storage.putBlob(blobId(`xe${epoch}`), [Buffer.from('epoch-marker')]);
      await writing.contents.refresh();
      await backUp(writing, tree);
    }
    await using repository = await openRefusing();
    const { tasks } = await maintain(repository);
    const merge = tasks.find(({ task }) => task === 'compact-single-epoch');
    expect(merge?.skipped).toContain('no room left');
    expect(tasks.map(({ task }) => task)).toContain('cleanup-logs');
  });

  it('without a reserve says what to do', async () => {
    {
      await using repository = await open();
      await repository.storage.deleteBlob(RESERVE);
      quota.bytes = await bytesIn(repository.storage);
    }
    const repository = await open();
    const advice = /make some MiB of room/;
    await expect(maintain(repository)).rejects.toThrow(advice);
    await expect(forgetSnapshots(repository, ids, { signal })).rejects.toThrow(advice);
  });
});
