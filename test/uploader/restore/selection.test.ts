import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { type ObjectId, type Repository, writeObject } from '../../../src/repository/index.ts';
import {
  type DirectoryEntry,
  encodeDirectory,
  readDirectory,
} from '../../../src/snapshot/index.ts';
import { Selection } from '../../../src/uploader/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest, restore } from '../../support/repositories.ts';

const work = tempDirectory('selection');
const at = (...names: string[]): string => join(work, ...names);
let root: DirectoryEntry;

beforeAll(async () => {
  await createTest(at('repo'));
  for (const path of ['b/hosts', 'c/deep/hosts', 'c/other']) {
    fs.mkdirSync(join(at('tree'), path, '..'), { recursive: true });
    fs.writeFileSync(join(at('tree'), path), path);
  }
  for (let i = 0; i < 20; i++) {
    fs.mkdirSync(at('tree', `many-${i}`));
    fs.writeFileSync(at('tree', `many-${i}`, 'file'), `${i}`);
  }
  await using repository = await openTest(at('repo'));
  root = (await backUp(repository, at('tree'))).rootEntry;
});
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

/** The same tree, with a directory in front whose bytes are gone. */
async function withDamage(repository: Repository): Promise<DirectoryEntry> {
  const entries = await readDirectory(repository, root.objectId);
  const directory = entries.find(({ type }) => type === 'd') ?? expect.fail();
  const lost = { ...directory, name: 'a-lost', objectId: `k${'0'.repeat(32)}` as ObjectId };
  const summary = root.summary ?? expect.fail();
  const objectId = await writeObject(
    repository.contents,
    [encodeDirectory([lost, ...entries], summary)],
    {
      prefix: 'k',
      compressor: undefined,
      metadataCompressor: undefined,
      splitter: repository.splitter,
      indexSplitter: repository.splitter,
    },
  );
  return { ...root, objectId };
}

/** Directories that are read while the task runs. */
function countReads(repository: Repository, onRead: (reads: number) => void = () => undefined) {
  const { contents } = repository;
  const read = contents.getContent.bind(contents);
  const counted = { reads: 0 };
  vi.spyOn(contents, 'getContent').mockImplementation((id, options) => {
    onRead(++counted.reads);
    return read(id, options);
  });
  return counted;
}

describe('a part of a tree', () => {
  it('comes back beside a directory that is lost, which is told', async () => {
    await using repository = await openTest(at('repo'));
    const damaged = await withDamage(repository);
    const selection = new Selection({ include: ['hosts'] });
    const restored = restore(repository, damaged, at('beside'), { selection });
    await expect(restored).rejects.toMatchObject({
      message: expect.stringContaining(`cannot restore ${at('beside/a-lost')}`) as string,
    });
    expect(fs.readdirSync(at('beside'), { recursive: true }).sort()).toEqual(
      ['b', 'b/hosts', 'c', 'c/deep', 'c/deep/hosts'].sort(),
    );
  });

  it('is not kept back by what is lost elsewhere', async () => {
    await using repository = await openTest(at('repo'));
    const damaged = await withDamage(repository);
    const selection = new Selection({ include: ['/c/deep/'] });
    await restore(repository, damaged, at('elsewhere'), { selection });
    expect(fs.readFileSync(at('elsewhere/c/deep/hosts'), 'utf8')).toBe('c/deep/hosts');
  });

  it('that is named from the root on is found without reading the rest', async () => {
    await using repository = await openTest(at('repo'));
    const counted = countReads(repository);
    const selection = new Selection({ include: ['/c/d*/hosts'] });
    await restore(repository, root, at('named'), { selection });
    expect(fs.readFileSync(at('named/c/deep/hosts'), 'utf8')).toBe('c/deep/hosts');
    // The root, c and deep: looked into once for each of those above, and read once to be restored.
    expect(counted.reads).toBeLessThanOrEqual(9);
  });

  it('is looked for until the restore is canceled', async () => {
    await using repository = await openTest(at('repo'));
    const canceled = new AbortController();
    const counted = countReads(repository, (reads) => {
      if (reads === 5) canceled.abort(new Error('enough'));
    });
    const selection = new Selection({ include: ['nowhere'] });
    const { signal } = canceled;
    const restored = restore(repository, root, at('canceled'), { selection, signal });
    await expect(restored).rejects.toThrow('enough');
    expect(counted.reads).toBe(5);
    expect(fs.existsSync(at('canceled'))).toBe(false);
  });
});
