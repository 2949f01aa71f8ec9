import * as fs from 'node:fs';
import * as fsPromises from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { blobId, openStorage } from '../../src/blob/index.ts';
import { tempDirectory } from '../support/kopia.ts';

/** A put flushes everything that must survive a power cut: bytes, name, and every new directory. */
const work = tempDirectory('durability');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

/** The paths that were synced while the task ran, in order. */
async function syncedBy(
  task: () => Promise<unknown>,
  refuse: (path: string) => void = () => undefined,
): Promise<string[]> {
  const probe = await fsPromises.open(work, 'r');
  const prototype = Object.getPrototypeOf(probe) as fsPromises.FileHandle;
  await probe.close();
  const sync = Object.getOwnPropertyDescriptor(prototype, 'sync') ?? expect.fail();
  const paths: string[] = [];
  Object.defineProperty(prototype, 'sync', {
    ...sync,
    value: async function (this: fsPromises.FileHandle) {
      const path = fs.readlinkSync(`/proc/self/fd/${this.fd}`);
      paths.push(path);
      refuse(path);
      await (sync.value as () => Promise<void>).call(this);
    },
  });
  try {
    await task();
  } finally {
    Object.defineProperty(prototype, 'sync', sync);
  }
  return paths;
}

it('a new directory is synced in the one above it, once, before a put is over', async () => {
  const root = join(work, 'new', 'deep', 'root');
  const opened = await syncedBy(async () => {
    await using storage = await openStorage(root, { create: true });
    expect(storage.displayName).toContain(root);
  });
  expect(opened).toEqual(expect.arrayContaining([work, join(work, 'new'), join(work, 'new/deep')]));
  await using storage = await openStorage(root);
  const put = (digits: string): Promise<string[]> =>
    syncedBy(() => storage.putBlob(blobId(`p${digits}${'0'.repeat(30)}-s0`), [Buffer.of(1)]));
  const first = await put('001');
  expect(first[0]).toMatch(/p\/001\/.*\.tmp\./);
  expect(first.slice(1).sort()).toEqual([root, join(root, 'p'), join(root, 'p/001')]);
  // A second blob in the same directory costs no more than before.
  expect((await put('001')).slice(1)).toEqual([join(root, 'p/001')]);
  expect((await put('002')).slice(1).sort()).toEqual([join(root, 'p'), join(root, 'p/002')]);
});

it('a directory that another process has just made is synced too', async () => {
  const root = join(work, 'shared');
  await using storage = await openStorage(root, { create: true });
  fs.mkdirSync(join(root, 'q', '00a'), { recursive: true });
  const id = blobId(`q00a${'0'.repeat(30)}-s0`);
  const synced = await syncedBy(() => storage.putBlob(id, [Buffer.of(1)]));
  expect(synced).toEqual(expect.arrayContaining([root, join(root, 'q'), join(root, 'q/00a')]));
});

const refusing =
  (code: string) =>
  (path: string): void => {
    if (!fs.statSync(path).isDirectory()) return;
    throw Object.assign(new Error(code), { code, syscall: 'fsync' });
  };

it.each(['EINVAL', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS'])(
  'a file system that says %s to the sync of a directory takes a repository',
  async (code) => {
    const root = join(work, `without-${code}`, 'root');
    const id = blobId(`p003${'0'.repeat(30)}-s0`);
    const synced = await syncedBy(async () => {
      await using storage = await openStorage(root, { create: true });
      await storage.putBlob(id, [Buffer.of(1)]);
      expect([...(await storage.getBlob(id))]).toEqual([1]);
    }, refusing(code));
    expect(synced).toContain(join(root, 'p/003'));
  },
);

it('a directory that the disk does not take fails the put', async () => {
  await using storage = await openStorage(join(work, 'broken'), { create: true });
  const put = storage.putBlob(blobId(`p003${'0'.repeat(30)}-s0`), [Buffer.of(1)]);
  await expect(syncedBy(() => put, refusing('EIO'))).rejects.toMatchObject({
    code: 'STORAGE_FAILED',
  });
});
