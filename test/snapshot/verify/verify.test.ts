import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import type { BlobId } from '../../../src/blob/index.ts';
import { objectId, type Repository } from '../../../src/repository/index.ts';
import {
  type DirectoryEntry,
  listSnapshots,
  readDirectory,
  verifyTrees,
} from '../../../src/snapshot/index.ts';
import { randomBytes } from '../../../src/base/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';

const work = tempDirectory('verify');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const { signal } = new AbortController();

/** A repository with one file in two snapshots. The second snapshot has another file too. */
async function repositoryWithTwo(name: string): Promise<Repository> {
  const path = join(work, name);
  const tree = join(work, `${name}-tree`);
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'a'), randomBytes(50_000));
  await createTest(path);
  const repository = await openTest(path);
  await backUp(repository, tree);
  fs.writeFileSync(join(tree, 'b'), randomBytes(50_000));
  await backUp(repository, tree);
  await repository.close();
  return openTest(path);
}

const rootsOf = async (repository: Repository): Promise<DirectoryEntry[]> =>
  (await listSnapshots(repository)).flatMap(({ rootEntry }) => rootEntry ?? []);

it('finds that a pack is not in the storage any more, or is cut short, without reading it', async () => {
  const repository = await repositoryWithTwo('packs');
  const roots = await rootsOf(repository);
  const verify = async (arePacksChecked = false): Promise<readonly { message: string }[]> => {
    const options = { readAll: false, signal, arePacksChecked };
    return (await verifyTrees(repository, roots, options)).problems;
  };
  expect(await verify()).toEqual([]);
  const [cut, lost] = (await Array.fromAsync(repository.storage.listBlobs('p'))).map(
    ({ id }) => id,
  ) as [BlobId, BlobId];
  const bytes = await repository.storage.getBlob(cut);
  await repository.storage.putBlob(cut, [bytes.subarray(0, 100)]);
  await repository.storage.deleteBlob(lost);
  const messages = (await verify()).map(({ message }) => message).sort();
  expect(messages).toHaveLength(2);
  expect(messages.some((text) => text.includes(`${lost} is damaged`))).toBe(true);
  expect(messages.join(' ')).toMatch(/the blob is missing/);
  expect(messages.join(' ')).toMatch(/the blob is cut short/);
  expect(await verify(true)).toEqual([]);
  await repository.close();
});

it('looks at what is in several trees once', async () => {
  const repository = await repositoryWithTwo('shared');
  const roots = await rootsOf(repository);
  const { objects } = await verifyTrees(repository, [...roots, ...roots], {
    readAll: false,
    signal,
  });
  // Two roots, and the files a and b.
  expect(objects).toBe(4);
  await repository.close();
});

it('looks at a tree from its start when an earlier one could not be walked to its end', async () => {
  const repository = await repositoryWithTwo('broken');
  const [first, second] = (await rootsOf(repository)) as [DirectoryEntry, DirectoryEntry];
  const bad = { ...first, objectId: objectId(`k${'0'.repeat(32)}`) };
  const options = { readAll: false, signal };
  const { objects, problems } = await verifyTrees(repository, [first, bad, second], options);
  expect(problems.length).toBeGreaterThan(0);
  // The first tree, the bad root, and all of the second tree again: the results of the failed call
  // are not reused.
  expect(objects).toBe(2 + 1 + 3);
  await repository.close();
});

it('holds a bounded number of problems and counts the rest', async () => {
  const repository = await repositoryWithTwo('many');
  const [first] = (await rootsOf(repository)) as [DirectoryEntry];
  const bad = Array.from({ length: 5 }, (_, i) => ({
    ...first,
    objectId: objectId(`k${String(i).repeat(32)}`),
  }));
  const options = { readAll: false, signal };
  const all = await verifyTrees(repository, bad, options);
  expect(all.problemsNotListed).toBe(0);
  const some = await verifyTrees(repository, bad, { ...options, problemsMax: 2 });
  expect(some.problems).toEqual(all.problems.slice(0, 2));
  expect(some.problemsNotListed).toBe(all.problems.length - 2);
  await repository.close();
});

it("takes a part of a file in a checkpoint of Kopia's, which has the size of the file, for no damage", async () => {
  const repository = await repositoryWithTwo('checkpointed');
  const [root] = (await rootsOf(repository)) as [DirectoryEntry];
  const [file] = (await readDirectory(repository, root.objectId)) as [DirectoryEntry];
  const options = { readAll: false, signal };
  const problemsOf = async (name: string): Promise<readonly { message: string }[]> =>
    (await verifyTrees(repository, [{ ...file, name, size: file.size + 1 }], options)).problems;
  expect(await problemsOf('.checkpointed.a.59a71a98-e077-49e9-9a8f-c431650ca086')).toEqual([]);
  expect(await problemsOf('a')).toMatchObject([
    { message: expect.stringContaining('has 50000 bytes, not 50001') as string },
  ]);
  await repository.close();
});

it('tells all that it read, however many were read at once', async () => {
  const [path, tree] = [join(work, 'reads'), join(work, 'reads-tree')];
  fs.mkdirSync(tree);
  for (let i = 0; i < 30; i++) fs.writeFileSync(join(tree, `f${i}`), randomBytes(1000));
  await createTest(path);
  await using repository = await openTest(path);
  const { rootEntry } = await backUp(repository, tree);
  const { objects, bytesRead } = await verifyTrees(repository, [rootEntry], {
    readAll: true,
    signal,
  });
  expect(objects).toBe(31);
  expect(bytesRead).toBeGreaterThan(30_000);
});
