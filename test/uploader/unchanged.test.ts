import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it, vi } from 'vitest';
import { posix, silentLogger } from '../../src/base/index.ts';
import { readDirectory, resolveEntry } from '../../src/snapshot/index.ts';
import { parseObjectId, type Repository } from '../../src/repository/index.ts';
import type { UploadResult } from '../../src/uploader/index.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('unchanged');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

/** A tree whose directories are taken over as they were: no rule and no special name is in them. */
async function prepared(name: string): Promise<{ repository: Repository; tree: string }> {
  const tree = at(`${name}-tree`);
  makeTree(join(tree, 'deep/inside'), name);
  await createTest(at(name));
  const repository = await openTest(at(name), { threads: true });
  await backUp(repository, tree);
  return { repository, tree };
}

/** Backs up the same tree without an earlier backup. */
async function fresh(name: string, tree: string): Promise<UploadResult> {
  const path = at(`${name}-fresh-${Math.random()}`);
  await createTest(path);
  await using repository = await openTest(path);
  return await backUp(repository, tree);
}

/** Directory streams do not depend on the repository; content ids do, by its secret. */
async function names(repository: Repository, { rootEntry }: UploadResult): Promise<string[]> {
  const found: string[] = [];
  const walk = async (id: typeof rootEntry.objectId, path: string): Promise<void> => {
    for (const entry of await readDirectory(repository, id)) {
      const { name, type, mode, size, mtimeNs, summary } = entry;
      const { maxTimeNs, ...rest } = summary ?? { maxTimeNs: 0n };
      const text = JSON.stringify({ ...rest, max: String(maxTimeNs) });
      found.push(`${path}/${name} ${type} ${mode} ${size} ${mtimeNs} ${text}`);
      if (type === 'd') await walk(entry.objectId, `${path}/${name}`);
    }
  };
  await walk(rootEntry.objectId, '');
  return found;
}

const changes: Record<string, (tree: string) => void> = {
  'a file deep below': (tree) => fs.appendFileSync(join(tree, 'deep/inside/many/1/file-5'), 'more'),
  'a mode': (tree) => fs.chmodSync(join(tree, 'deep/inside/README'), 0o600),
  'the mode of a directory': (tree) => fs.chmodSync(join(tree, 'deep/inside/many/2'), 0o700),
  'the time of a directory': (tree) => fs.utimesSync(join(tree, 'deep/inside/many'), 77, 77),
  'a new file': (tree) => fs.writeFileSync(join(tree, 'deep/inside/many/3/zzz'), 'new'),
  'a file that went': (tree) => fs.rmSync(join(tree, 'deep/inside/many/0/file-8')),
  'a directory that went': (tree) =>
    fs.rmSync(join(tree, 'deep/inside/many/0'), { recursive: true }),
  'a directory that came': (tree) =>
    fs.mkdirSync(join(tree, 'deep/inside/many/9/8'), { recursive: true }),
  'a link': (tree) => {
    const link = join(tree, 'deep/inside/dangling');
    fs.rmSync(link);
    fs.symlinkSync('/elsewhere/as/long', link);
  },
  'a file that became a directory': (tree) => {
    fs.rmSync(join(tree, 'deep/inside/many/1/file-1'));
    fs.mkdirSync(join(tree, 'deep/inside/many/1/file-1'));
  },
};

it.for(Object.entries(changes))(
  '%s is seen, and the rest is taken over',
  async ([what, change]) => {
    const name = what.replaceAll(' ', '-');
    const { repository, tree } = await prepared(name);
    await using opened = repository;
    change(tree);
    const result = await backUp(opened, tree);
    expect(result.counters.cachedFiles).toBeGreaterThan(25);
    const path = at(`${name}-fresh`);
    await createTest(path);
    await using other = await openTest(path);
    expect(await names(opened, result)).toEqual(await names(other, await backUp(other, tree)));
    await restore(opened, result.rootEntry, at(`${name}-out`));
    assertSameTree(tree, at(`${name}-out`));
  },
);

it('an unchanged tree costs no content, and every directory is counted', async () => {
  const { repository, tree } = await prepared('same');
  await using opened = repository;
  const again = await backUp(opened, tree);
  const first = await fresh('same', tree);
  expect(again.counters).toMatchObject({ files: 0, bytesRead: 0, contentsNew: 0 });
  expect(again.counters.directories).toBe(first.counters.directories);
  expect(again.counters.cachedFiles).toBe(first.counters.files);
  expect(again.counters.totalBytes).toBe(first.counters.totalBytes);
  if (hasKopia) {
    const kopia = new Kopia(PASSWORD).connect(at('same'));
    const theirs = kopia.json<{ rootEntry: { obj: string } }>('snapshot', 'create', tree);
    expect(theirs.rootEntry.obj).toBe(again.rootEntry.objectId);
  }
});

it('a file whose content is marked deleted is read and stored again', async () => {
  const { repository, tree } = await prepared('lost');
  await using opened = repository;
  const { rootEntry } = await backUp(opened, tree);
  const file = await resolveEntry(opened, `${rootEntry.objectId}/deep/inside/many/1/file-5`);
  const { contentId } = parseObjectId(file.objectId);
  opened.contents.setDeleted(contentId, true);
  await opened.flush();
  const again = await backUp(opened, tree);
  expect(again.counters).toMatchObject({ files: 1, contentsNew: 1 });
  expect(opened.contents.has(contentId)).toBe(true);
});

it('a directory whose own content is marked deleted is stored again', async () => {
  const { repository, tree } = await prepared('lost-directory');
  await using opened = repository;
  const { rootEntry } = await backUp(opened, tree);
  const path = `${rootEntry.objectId}/deep/inside/many`;
  const { contentId } = parseObjectId((await resolveEntry(opened, path)).objectId);
  opened.contents.setDeleted(contentId, true);
  await opened.flush();
  const again = await backUp(opened, tree);
  expect(again.rootEntry.objectId).toBe(rootEntry.objectId);
  expect(opened.contents.has(contentId)).toBe(true);
});

it('without a reader of statuses, a tree is taken over all the same, and that is said', async () => {
  const reader = vi.spyOn(posix(), 'statusReader', 'get').mockReturnValue(undefined);
  const tree = at('slowly-tree');
  makeTree(join(tree, 'deep/inside'), 'slowly');
  await createTest(at('slowly'));
  await using repository = await openTest(at('slowly'));
  await backUp(repository, tree);
  const { counters } = await backUp(repository, tree);
  expect(counters.cachedFiles).toBeGreaterThan(25);
  expect(counters.bytesRead).toBe(0);
  expect(reader).toHaveBeenCalled();
  reader.mockRestore();
});

it.runIf(posix().native)('a stand-in for a fast path says that it is one', async () => {
  const tree = at('said-tree');
  makeTree(tree, 'said');
  await createTest(at('said'));
  const warnings: string[] = [];
  const warn = (_fields: object, text: string): void => void warnings.push(text);
  const said = async (): Promise<string[]> => {
    warnings.length = 0;
    await using repository = await openTest(at('said'));
    await backUp(repository, tree, { logger: { ...silentLogger, warn } });
    return [...warnings];
  };
  expect(await said()).toEqual([]);
  const reader = vi.spyOn(posix(), 'statusReader', 'get').mockReturnValue(undefined);
  expect(await said()).toEqual([expect.stringContaining('statx does not work')]);
  reader.mockRestore();
  const native = vi.spyOn(posix(), 'native', 'get').mockReturnValue(false);
  expect(await said()).toEqual([expect.stringContaining('koffi cannot be loaded')]);
  native.mockRestore();
});
