import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { blobId, openStorage } from '../../src/blob/index.ts';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('storage-gone');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const id = (digits: string) => blobId(`p${digits}${'0'.repeat(30)}-s0`);

/** After an unmount: an empty mount point, or none at all. */
describe('a directory that goes away while it is open takes no blob, and does not say that one is missing', () => {
  it.each([
    ['its root is gone', false, true],
    ['an empty directory is in its place', true, true],
    ['its root is gone, and it had no shards file', false, false],
  ])('%s', async (what, isReplaced, hasShards) => {
    const root = join(work, what);
    await (await openStorage(root, { create: true })).close();
    if (!hasShards) fs.rmSync(join(root, '.shards'));
    await using storage = await openStorage(root);
    await storage.putBlob(id('001'), [Buffer.of(1)]);
    fs.renameSync(root, `${root} elsewhere`);
    if (isReplaced) fs.mkdirSync(root);
    const gone = { code: 'STORAGE_NOT_FOUND' };
    await expect(Array.fromAsync(storage.listBlobs('p'))).rejects.toMatchObject(gone);
    await expect(storage.getBlob(id('001'))).rejects.toMatchObject(gone);
    await expect(storage.getMetadata(id('001'))).rejects.toMatchObject(gone);
    for (const digits of ['001', '002']) {
      await expect(storage.putBlob(id(digits), [Buffer.of(1)])).rejects.toMatchObject({
        code: 'STORAGE_NOT_FOUND',
        message: expect.stringContaining('disappeared while it was open') as string,
      });
    }
    expect(isReplaced ? fs.readdirSync(root) : fs.existsSync(root)).toEqual(
      isReplaced ? [] : false,
    );
    // The directory is back with all its blobs.
    fs.rmSync(root, { recursive: true, force: true });
    fs.renameSync(`${root} elsewhere`, root);
    await storage.putBlob(id('002'), [Buffer.of(2)]);
    expect(await storage.getBlob(id('001'))).toEqual(Buffer.of(1));
  });
});
