import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { type BlobId, blobId, type BlobStorage, faulty, listAll } from '../../src/blob/index.ts';
import { listSnapshots, verifyTrees } from '../../src/snapshot/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('slow-index');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

it('an index that is put while two epochs go by is taken back, the upload fails, and the next one is whole', async () => {
  makeTree(at('tree'), 'slow index');
  await createTest(at('repo'));
  const put: BlobId[] = [];
  /** Another client advances the epoch twice while the first index blob is on its way. */
  const overtaken = (inner: BlobStorage): BlobStorage =>
    faulty(inner, async ({ operation, id, when }) => {
      if (operation !== 'put' || !id.startsWith('xn0_') || when !== 'after') return;
      put.push(blobId(id));
      await inner.putBlob(blobId('xe1'), [Buffer.from('epoch-marker')]);
      await inner.putBlob(blobId('xe2'), [Buffer.from('epoch-marker')]);
    });
  {
    await using repository = await openTest(at('repo'), { wrap: overtaken });
    await expect(backUp(repository, at('tree'))).rejects.toMatchObject({
      code: 'INDEX_WRITE_TOO_SLOW',
    });
    expect(put).toHaveLength(1);
    const there = (await listAll(repository.storage, 'x')).map(({ id }) => id);
    expect(there).not.toContain(put[0]);
    // Its contents are not named: nothing may refer to them any more.
    await expect(repository.flush()).rejects.toMatchObject({ code: 'INDEX_WRITE_TOO_SLOW' });
  }
  await using again = await openTest(at('repo'));
  expect(await listSnapshots(again)).toEqual([]);
  await backUp(again, at('tree'));
  const roots = (await listSnapshots(again)).flatMap(({ rootEntry }) => rootEntry ?? []);
  expect(roots).toHaveLength(1);
  const options = { readAll: true, signal: new AbortController().signal };
  expect((await verifyTrees(again, roots, options)).problems).toEqual([]);
});
