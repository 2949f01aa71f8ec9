import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { prefixOf, type Repository } from '../../src/repository/index.ts';
import type { DirectoryEntry } from '../../src/snapshot/index.ts';
import { gatedPool } from '../support/gated-pool.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('many-large');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const FILES = 200;
/** As many files as are open at once (restore.ts, OPEN_FILES_MAX). */
const OPEN_FILES = 64;
const FILE_BYTES = 150_000;
let root: DirectoryEntry;

beforeAll(async () => {
  fs.mkdirSync(at('tree'));
  for (let i = 0; i < FILES; i++) {
    fs.writeFileSync(at(`tree/${i}`), noise(`large ${i}`, FILE_BYTES));
  }
  // Each file has two contents, so an index of its own.
  await createTest(at('repo'), { splitter: 'FIXED-128K' });
  await using repository = await openTest(at('repo'));
  root = (await backUp(repository, at('tree'))).rootEntry;
});

/** Calls back before each index of a file is read. */
function onIndexRead(repository: Repository, callback: () => void): void {
  const { contents } = repository;
  const getContent = contents.getContent.bind(contents);
  contents.getContent = (id, options) => {
    if (prefixOf(id) === 'x') callback();
    return getContent(id, options);
  };
}

it('pieces are listed of those files only that are open', async () => {
  let isHeld = true;
  const factory = gatedPool((method) => {
    if (method !== 'open') return undefined;
    return (async () => {
      while (isHeld) await sleep(10);
    })();
  });
  await using repository = await openTest(at('repo'), { factory });
  let indexes = 0;
  onIndexRead(repository, () => indexes++);
  const done = restore(repository, root, at('out'));
  while (indexes < OPEN_FILES) await sleep(10);
  await sleep(300);
  expect(indexes).toBe(OPEN_FILES);
  isHeld = false;
  expect(await done).toMatchObject({ files: FILES, errors: 0, bytes: FILES * FILE_BYTES });
  assertSameTree(at('tree'), at('out'));
});

it('files whose pieces cannot be listed keep no place from the others', async () => {
  await using repository = await openTest(at('repo'));
  let indexes = 0;
  onIndexRead(repository, () => {
    if (++indexes <= 2 * OPEN_FILES) throw new CodedError('DAMAGED_BLOB', 'it is damaged');
  });
  await expect(restore(repository, root, at('damaged'))).rejects.toMatchObject({
    code: 'DAMAGED_BLOB',
    message: expect.stringContaining(`and ${2 * OPEN_FILES - 1} more failed`) as string,
  });
  expect(fs.readdirSync(at('damaged'))).toHaveLength(FILES - 2 * OPEN_FILES);
});
