import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, expect, it, vi } from 'vitest';
import { prefixOf } from '../../src/repository/index.ts';
import { LongUpload } from '../../src/uploader/upload/long-upload.ts';
import { findLostObjects } from '../../src/uploader/upload/tree-check.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('confirm-memory');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
afterEach(() => vi.restoreAllMocks());
const at = (name: string): string => join(work, name);

it('what is stored again at the end of a long upload is named by checkpoints too', async () => {
  makeTree(at('tree'), 'confirmed');
  await createTest(at('repo'));
  await using repository = await openTest(at('repo'));
  const { contents } = repository;
  let isNamed = false;
  vi.spyOn(LongUpload.prototype, 'confirm').mockImplementation(async (root) => {
    const { contentId } = await contents.write(Buffer.from('stored again'), { prefix: '' });
    for (let waited = 0; waited < 10_000 && !isNamed; waited += 50) {
      await sleep(50);
      isNamed = contents.session.find(contentId) === undefined && contents.has(contentId);
    }
    return root;
  });
  await backUp(repository, at('tree'), { checkpointIntervalNs: 1n, indexIntervalNs: 1n });
  expect(isNamed).toBe(true);
});

it('what was marked deleted and several files share is stored again, and not called lost for its new pack', async () => {
  fs.mkdirSync(at('shared'));
  for (let i = 0; i < 4; i++) fs.writeFileSync(at(`shared/${i}`), `shared by two: ${i >> 1}`);
  await createTest(at('shared-repo'));
  await using repository = await openTest(at('shared-repo'));
  const { contents } = repository;
  const { rootEntry } = await backUp(repository, at('shared'));
  for (const { contentId } of [...contents.entries()]) {
    if (prefixOf(contentId) === '') contents.setDeleted(contentId, true);
  }
  await contents.flush();
  const { signal } = new AbortController();
  const lost = await findLostObjects(repository, rootEntry, {
    signal,
    onChecked: () => undefined,
  });
  expect(lost.count).toBe(0);
});

it('what is stored again waits while too many entries wait for an index', async () => {
  makeTree(at('small'), 'room');
  await createTest(at('room-repo'));
  await using repository = await openTest(at('room-repo'));
  const { contents } = repository;
  const { rootEntry } = await backUp(repository, at('small'));
  const files = [...contents.entries()].filter(({ contentId }) => prefixOf(contentId) === '');
  for (const { contentId } of files) contents.setDeleted(contentId, true);
  await contents.flush();
  const room = Promise.withResolvers<undefined>();
  const asked = vi.spyOn(contents, 'whenRoom').mockReturnValue(room.promise);
  const { signal } = new AbortController();
  const found = findLostObjects(repository, rootEntry, { signal, onChecked: () => undefined });
  while (asked.mock.calls.length === 0) await sleep(5);
  await sleep(100);
  expect(files.some(({ contentId }) => contents.has(contentId))).toBe(false);
  room.resolve(undefined);
  await found;
  expect(files.every(({ contentId }) => contents.has(contentId))).toBe(true);
});
