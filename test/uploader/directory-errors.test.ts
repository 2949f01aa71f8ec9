import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import type { ThreadPoolFactory } from '../../src/volume-files/index.ts';
import { DEFAULT_POLICY, listSnapshots, putPolicy } from '../../src/snapshot/index.ts';
import { createInProcessPool } from '../../src/workers/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, CLIENT, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('directory-errors');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

/** Listing `broken` fails with this error, in whichever way it is listed. */
const failingWith =
  (error: Error): ThreadPoolFactory =>
  (keys, arena) => {
    const pool = createInProcessPool(keys, arena);
    const readDirectory = pool.readDirectory.bind(pool);
    const compareDirectory = pool.compareDirectory.bind(pool);
    const isBroken = (path: string | Uint8Array): boolean => String(path).endsWith('/broken');
    return Object.assign(pool, {
      readDirectory: (...parameters: Parameters<typeof readDirectory>) =>
        isBroken(parameters[0]) ? Promise.reject(error) : readDirectory(...parameters),
      compareDirectory: (...parameters: Parameters<typeof compareDirectory>) =>
        isBroken(parameters[0]) ? Promise.reject(error) : compareDirectory(...parameters),
    });
  };

async function prepare(name: string): Promise<string> {
  const tree = at(`${name}-tree`);
  fs.mkdirSync(join(tree, 'broken'), { recursive: true });
  fs.mkdirSync(join(tree, 'whole'));
  for (const path of ['broken/file', 'whole/file']) fs.writeFileSync(join(tree, path), path);
  await createTest(at(name));
  await using repository = await openTest(at(name));
  const policy = { ...DEFAULT_POLICY, errorHandling: { ignoreDirectoryErrors: true } };
  await putPolicy(repository, { host: CLIENT.hostname, userName: '', path: '' }, policy);
  await repository.flush();
  return tree;
}

const system = (code: string): Error =>
  Object.assign(new Error(`${code}: of the system, scandir`), { code, syscall: 'scandir' });
const cases: [string, Error, string | undefined][] = [
  ['a thread that died', new CodedError('THREAD_DIED', 'a worker thread died'), 'THREAD_DIED'],
  ['too many open files', system('EMFILE'), 'EMFILE'],
  ['a bug', new TypeError('of ours'), undefined],
];
it.each(cases)(
  '%s fails the backup, also where errors of directories are ignored',
  async (what, error, code) => {
    const name = what.replaceAll(' ', '-');
    const tree = await prepare(name);
    await using repository = await openTest(at(name), { factory: failingWith(error) });
    for (let run = 0; run < 2; run++) {
      const failed = await backUp(repository, tree).catch((thrown: unknown) => thrown);
      expect(failed).toBeInstanceOf(Error);
      expect((failed as { code?: string }).code).toBe(code);
    }
    expect(await listSnapshots(repository)).toEqual([]);
  },
);

it.each(['EACCES', 'EIO', 'ESTALE'])('%s of a directory is ignored by policy', async (code) => {
  const tree = await prepare(code);
  await using repository = await openTest(at(code), { factory: failingWith(system(code)) });
  const { counters, rootEntry } = await backUp(repository, tree);
  expect(counters).toMatchObject({ errors: 0, ignoredErrors: 1, files: 1 });
  expect(rootEntry.summary?.errors).toEqual([
    { path: 'broken', error: `${code}: of the system, scandir` },
  ]);
});

it('a directory that was removed after it was listed is left out, and is no error', async () => {
  const tree = await prepare('removed');
  await using repository = await openTest(at('removed'), {
    factory: failingWith(system('ENOENT')),
  });
  const { counters, rootEntry } = await backUp(repository, tree);
  expect(counters).toMatchObject({ errors: 0, ignoredErrors: 0, vanished: 1, files: 1 });
  expect(rootEntry.summary).toMatchObject({ files: 1, numFailed: 0 });
});

it('a directory that is missing from a frozen volume is an error', async () => {
  const tree = await prepare('frozen');
  await using repository = await openTest(at('frozen'), {
    factory: failingWith(system('ENOENT')),
  });
  const frozen = { atNs: undefined, isSame: () => false };
  const { counters } = await backUp(repository, tree, { frozen });
  expect(counters).toMatchObject({ ignoredErrors: 1, vanished: 0 });
});

it('a source that was replaced while it was read is not taken for one whose files were removed', async () => {
  const tree = await prepare('replaced');
  await using repository = await openTest(at('replaced'), {
    factory: (keys, arena) => {
      const pool = createInProcessPool(keys, arena);
      const readFiles = pool.readFiles.bind(pool);
      return Object.assign(pool, {
        readFiles: (...parameters: Parameters<typeof readFiles>) => {
          if (!fs.existsSync(`${tree}-away`)) {
            fs.renameSync(tree, `${tree}-away`);
            fs.mkdirSync(tree);
          }
          return readFiles(...parameters);
        },
      });
    },
  });
  await expect(backUp(repository, tree)).rejects.toThrow(
    'it was unmounted or replaced while it was read',
  );
  expect(await listSnapshots(repository)).toEqual([]);
});

it('an ignore file that cannot be used is an error even where errors of directories are ignored', async () => {
  const tree = await prepare('rules');
  fs.writeFileSync(join(tree, 'broken/.kopiaignore'), '[\n');
  await using repository = await openTest(at('rules'));
  const { counters } = await backUp(repository, tree);
  expect(counters).toMatchObject({ errors: 1, ignoredErrors: 0, files: 1 });
});
