import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { type BlobId, blobId, type BlobStorage, faulty, listAll } from '../../src/blob/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { parseContentId } from '../../src/repository/index/content-id.ts';
import { listSnapshots, verifyTrees } from '../../src/snapshot/index.ts';
import { newUploadCounters } from '../../src/uploader/index.ts';
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
  /** A second client advances the epoch twice during the upload of the first index blob. */
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

it('an index that is put stays when the storage does not answer afterwards: others may rely on what it names', async () => {
  await createTest(at('relied-on'));
  const data = Buffer.from('in the volumes of two clients');
  const failure = new CodedError('STORAGE_THROTTLED', 'no more listings');
  let isBusy = false;
  /**
   * A second client stores the same contents as soon as the index is visible. The first client gets
   * no answer any more.
   */
  const wrap = (inner: BlobStorage): BlobStorage =>
    faulty(inner, async ({ operation, id, when }) => {
      if (isBusy && operation === 'list') throw failure;
      if (operation !== 'put' || !id.startsWith('xn0_') || when !== 'after') return;
      await using other = await openTest(at('relied-on'));
      expect(await other.contents.write(data, { prefix: 'k' })).toMatchObject({ isNew: false });
      await other.flush();
      isBusy = true;
    });
  await using repository = await openTest(at('relied-on'), { wrap });
  const { contentId } = await repository.contents.write(data, { prefix: 'k' });
  await expect(repository.contents.flush()).rejects.toBe(failure);
  await using reader = await openTest(at('relied-on'));
  expect(Buffer.from(await reader.contents.getContent(contentId))).toEqual(data);
});

/** Entries of contents that nobody has, from one number to another, which wait for an index. */
async function addEntries({ contents }: Repository, from: number, to: number): Promise<void> {
  const { contentId } = await contents.write(Buffer.from('first'), { prefix: 'k' });
  const entry = contents.findOrThrow(contentId);
  for (let i = from; i < to; i++) {
    const id = parseContentId(`k${i.toString(16).padStart(32, '0')}`);
    contents.session.addEntry({ ...entry, contentId: id });
  }
}

/** Limit of entries that wait for an index while another index is written (content-manager.ts). */
const ENTRIES_MAX = 1 << 18;

it('while the storage takes packs and no index, entries do not pile up in memory without a bound', async () => {
  fs.mkdirSync(at('small'));
  const FILES = 20;
  for (let i = 0; i < FILES; i++) fs.writeFileSync(at(`small/${i}`), `file ${i}`);
  await createTest(at('hanging-repo'));
  const hang = Promise.withResolvers<undefined>();
  let isHanging = false;
  const wrap = (inner: BlobStorage): BlobStorage =>
    faulty(inner, ({ operation, id, when }) => {
      if (!isHanging || operation !== 'put' || !id.startsWith('xn') || when !== 'before') return;
      return hang.promise;
    });
  await using repository = await openTest(at('hanging-repo'), { wrap });
  const { contents } = repository;
  isHanging = true;
  await addEntries(repository, 0, ENTRIES_MAX / 2);
  const flushed = contents.flush();
  // The entries of the flush count as long as its index is not there.
  await addEntries(repository, ENTRIES_MAX / 2, ENTRIES_MAX - 2);
  await contents.write(Buffer.from('there is room for one more'), { prefix: 'k' });
  let isWritten = false;
  const write = contents.write(Buffer.from('no room'), { prefix: 'k' }).finally(() => {
    isWritten = true;
  });
  const counters = newUploadCounters();
  const upload = backUp(repository, at('small'), { counters });
  await sleep(500);
  expect([isWritten, counters.files]).toEqual([false, 0]);
  isHanging = false;
  hang.resolve(undefined);
  await flushed;
  await write;
  expect((await upload).counters).toMatchObject({ files: FILES, errors: 0 });
});

it('an index that cannot be put ends the wait for room with its error', async () => {
  await createTest(at('failing-repo'));
  const hang = Promise.withResolvers<undefined>();
  const wrap = (inner: BlobStorage): BlobStorage =>
    faulty(inner, async ({ operation, id, when }) => {
      if (operation !== 'put' || !id.startsWith('xn') || when !== 'before') return;
      await hang.promise;
      throw new CodedError('STORAGE_FAILED', 'the storage takes no index');
    });
  await using repository = await openTest(at('failing-repo'), { wrap });
  const { contents } = repository;
  await addEntries(repository, 0, ENTRIES_MAX);
  const flushed = contents.flush();
  const write = contents.write(Buffer.from('no room'), { prefix: 'k' });
  const settled = Promise.allSettled([flushed, write]);
  await sleep(100);
  hang.resolve(undefined);
  for (const result of await settled) {
    expect(result).toMatchObject({ status: 'rejected', reason: { code: 'STORAGE_FAILED' } });
  }
});
