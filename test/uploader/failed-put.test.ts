import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { faulty } from '../../src/blob/index.ts';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { newUploadCounters } from '../../src/uploader/index.ts';
import { gatedPool } from '../support/gated-pool.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('failed-put');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const DIRECTORIES = 120;
const LARGE_BYTES = 200_000_000;

/** Many small directories, or one large file; a new file comes first. */
function makeSource(kind: string): string {
  const tree = at(kind);
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'a-new-file'), noise(`${kind}-new`, 5_000));
  if (kind === 'large') {
    fs.writeFileSync(join(tree, 'large'), Buffer.alloc(LARGE_BYTES, noise('large', 7_000_000)));
    return tree;
  }
  for (let i = 0; i < DIRECTORIES; i++) {
    fs.mkdirSync(join(tree, `d${i}`));
    for (let k = 0; k < 10; k++) fs.writeFileSync(join(tree, `d${i}/f${k}`), `file ${k}`);
  }
  return tree;
}

/** Directory reads and cut calls before all tasks wait for the first put that fails. */
const FREE_CALLS = { directory: 20, cut: 4 };

/**
 * Measures the directories and bytes that are read after the first failed put. The storage takes no
 * pack.
 */
async function readAfterFailure(
  repo: string,
  tree: string,
): Promise<{ directories: number; bytes: number }> {
  let failed = false;
  let calls = 0;
  const failing = Promise.withResolvers<undefined>();
  const after = { directories: 0, bytes: 0 };
  const counters = new Proxy(newUploadCounters(), {
    set: (target, key, value: number) => {
      if (failed && key === 'bytesRead') after.bytes += value - target.bytesRead;
      return Reflect.set(target, key, value);
    },
  });
  await using repository = await openTest(repo, {
    factory: gatedPool((method) => {
      const isDirectory = /Directory$/.test(method);
      if (failed && isDirectory) after.directories++;
      if (!isDirectory && method !== 'cut') return undefined;
      return ++calls > FREE_CALLS[isDirectory ? 'directory' : 'cut'] ? failing.promise : undefined;
    }),
    wrap: (storage) =>
      faulty(storage, ({ operation, id }) => {
        if (operation !== 'put' || !id.startsWith('p')) return;
        failed = true;
        failing.resolve(undefined);
        throw new CodedError('STORAGE_FULL', 'no space left, on purpose');
      }),
  });
  const before = await listSnapshots(repository);
  await expect(
    backUp(repository, tree, { counters, checkpointIntervalNs: 1n, indexIntervalNs: 1n }),
  ).rejects.toMatchObject({ code: 'STORAGE_FULL' });
  expect(failed).toBe(true);
  expect(await listSnapshots(repository)).toEqual(before);
  return after;
}

it('a backup that can store nothing any more does not look at the rest of its directories', async () => {
  const repo = at('repo-directories');
  await createTest(repo);
  const { directories } = await readAfterFailure(repo, makeSource('directories'));
  // Directories that were read ahead.
  expect(directories).toBeLessThan(DIRECTORIES / 4);
});

it('nor does it read a large file to its end of which nothing is new', async () => {
  const repo = at('repo-large');
  await createTest(repo);
  const tree = makeSource('large');
  {
    await using repository = await openTest(repo);
    await backUp(repository, tree);
  }
  fs.writeFileSync(join(tree, 'a-new-file'), noise('newer', 6_000));
  fs.utimesSync(join(tree, 'large'), 1, 1);
  const { bytes } = await readAfterFailure(repo, tree);
  expect(bytes).toBeLessThan(LARGE_BYTES / 2);
});
