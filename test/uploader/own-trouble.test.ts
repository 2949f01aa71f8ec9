import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { posix } from '../../src/base/index.ts';
import { DEFAULT_POLICY, listSnapshots, putPolicy } from '../../src/snapshot/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, CLIENT, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('own-trouble');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const [repo, tree] = [join(work, 'repo'), join(work, 'tree')];

beforeAll(async () => {
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'small'), 'small');
  fs.writeFileSync(join(tree, 'large'), noise('large', 5_000_000));
  await createTest(repo);
  await using repository = await openTest(repo);
  const policy = { ...DEFAULT_POLICY, errorHandling: { ignoreFileErrors: true } };
  await putPolicy(repository, { host: CLIENT.hostname, userName: '', path: '' }, policy);
  await repository.flush();
});

/** Runs a task while a file of the tree cannot be opened, in whichever way it is opened. */
async function withoutOpening<T>(name: string, code: string, task: () => Promise<T>): Promise<T> {
  const refuse = (path: unknown): void => {
    if (String(path) !== join(tree, name)) return;
    throw Object.assign(new Error(`${code}: of the system, open`), { code, syscall: 'open' });
  };
  const { openSync } = fs;
  const { open } = fs.promises;
  const native = vi.spyOn(posix(), 'openWithoutLinks', 'get').mockReturnValue(undefined);
  fs.openSync = (...parameters) => {
    refuse(parameters[0]);
    return openSync(...parameters);
  };
  fs.promises.open = async (...parameters) => {
    refuse(parameters[0]);
    return open(...parameters);
  };
  syncBuiltinESMExports();
  try {
    return await task();
  } finally {
    fs.openSync = openSync;
    fs.promises.open = open;
    native.mockRestore();
    syncBuiltinESMExports();
  }
}

describe.each(['small', 'large'])('a %s file that cannot be opened', (name) => {
  it.each(['EMFILE', 'ENFILE', 'ENOMEM'])(
    'for want of our own (%s) fails the backup, also where errors of files are ignored',
    async (code) => {
      await using repository = await openTest(repo);
      const before = await listSnapshots(repository);
      await withoutOpening(name, code, async () => {
        await expect(backUp(repository, tree)).rejects.toMatchObject({ code });
      });
      expect(await listSnapshots(repository)).toEqual(before);
    },
  );

  it('for a fault of its own is left out, where that is wanted', async () => {
    await using repository = await openTest(repo);
    const { counters } = await withoutOpening(name, 'EIO', () =>
      backUp(repository, tree, { source: { host: CLIENT.hostname, userName: 'x', path: name } }),
    );
    expect(counters).toMatchObject({ errors: 0, ignoredErrors: 1 });
  });
});
