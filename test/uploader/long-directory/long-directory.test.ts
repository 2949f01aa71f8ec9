import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { parseObjectId } from '../../../src/repository/index.ts';
import { readDirectory, resolveEntry, verifyTrees } from '../../../src/snapshot/index.ts';
import { newUploadCounters, type UploadOptions } from '../../../src/uploader/index.ts';
import { listLong } from '../../../src/uploader/long-directory/long-listing.ts';
import { decodeListing } from '../../../src/uploader/listing/listing.ts';
import { age } from '../../support/trees.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../../support/repositories.ts';

const work = tempDirectory('long-directory');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const LONG: Partial<UploadOptions> = { listingEntriesMax: 100 };

/** A directory with names of all kinds: directories, links, an ignore file and ignored files. */
function makeLong(path: string): void {
  fs.mkdirSync(path, { recursive: true });
  for (let i = 0; i < 2000; i++)
    fs.writeFileSync(join(path, `file-${(i * 7919) % 2000}`), `${i % 9}`);
  for (let i = 0; i < 300; i++) {
    fs.mkdirSync(join(path, `directory-${i}`));
    fs.writeFileSync(join(path, `directory-${i}`, 'inside'), `${i}`);
  }
  for (let i = 0; i < 60; i++) fs.symlinkSync(`file-${i}`, join(path, `link ${i}`));
  for (const name of ['日本語', 'é', '😀', '\uffee', 'a"b\\c<&>', 'tab\there']) {
    fs.writeFileSync(join(path, name), name);
  }
  for (let i = 0xa0; i < 0x100; i++) {
    fs.writeFileSync(Buffer.concat([Buffer.from(`${path}/latin-`), Buffer.of(i)]), `${i}`);
    fs.writeFileSync(Buffer.concat([Buffer.from(`${path}/x`), Buffer.of(i, 0x61)]), `${i}`);
  }
  fs.writeFileSync(join(path, '.kopiaignore'), 'file-4*\n');
  age(path);
}
const IGNORED = 111;

describe('a directory with more entries than are held in memory', () => {
  it('is stored, taken over, listed, verified and restored like any other', async () => {
    const tree = at('tree');
    makeLong(join(tree, 'long'));
    await createTest(at('repo'));
    await using repository = await openTest(at('repo'), { threads: true });
    const { rootEntry, counters } = await backUp(repository, tree, LONG);
    const total = 2000 - IGNORED + 300 + 6 + 2 * 96 + 1;
    expect(counters).toMatchObject({ errors: 0, files: total, directories: 302, skipped: IGNORED });
    const long = await resolveEntry(repository, `${rootEntry.objectId}/long`);
    const entries = await readDirectory(repository, long.objectId);
    expect(entries.length).toBe(total + 60);
    expect(new Set(entries.map(({ name }) => name)).size).toBe(entries.length);

    // Unchanged, but for names that are not UTF-8 and are the same once replaced.
    const again = await backUp(repository, tree, LONG);
    expect(again.counters).toMatchObject({ errors: 0, contentsNew: 0 });
    expect(again.counters.files).toBeLessThan(2 * 96);
    expect(again.counters.cachedFiles + again.counters.files).toBe(total);
    expect(again.rootEntry.objectId).toBe(rootEntry.objectId);

    const verified = await verifyTrees(repository, [rootEntry], {
      readAll: true,
      signal: new AbortController().signal,
    });
    expect(verified.problems).toEqual([]);
    await restore(repository, rootEntry, at('out'));
    expect(fs.readdirSync(join(at('out'), 'long')).length).toBe(total + 60);
    expect(fs.readFileSync(join(at('out'), 'long/directory-7/inside'), 'utf8')).toBe('7');
    expect(fs.readFileSync(join(at('out'), 'long/😀'), 'utf8')).toBe('😀');
  });

  it('is stored byte for byte as a short one is', async () => {
    const tree = at('same');
    fs.mkdirSync(join(tree, 'long'), { recursive: true });
    makeLong(join(tree, 'long'));
    // Names that become the same get their suffixes in another order.
    for (const name of fs.readdirSync(join(tree, 'long'), { encoding: 'buffer' })) {
      if (name.includes(0x78) && name[0] === 0x78) {
        fs.rmSync(Buffer.concat([Buffer.from(`${tree}/long/`), name]));
      }
      if (name.toString('latin1').startsWith('latin-')) {
        fs.rmSync(Buffer.concat([Buffer.from(`${tree}/long/`), name]));
      }
    }
    await createTest(at('same-repo'));
    await using repository = await openTest(at('same-repo'));
    const long = await backUp(repository, tree, LONG);
    const short = await backUp(repository, tree);
    expect(short.rootEntry.objectId).toBe(long.rootEntry.objectId);
    expect(short.counters.files).toBe(0);
    await restore(repository, long.rootEntry, at('same-out'));
    for (let i = 4; i < 2000; i++) {
      if (String(i).startsWith('4')) fs.rmSync(join(tree, `long/file-${i}`));
    }
    fs.utimesSync(join(tree, 'long'), 5, 5);
    fs.utimesSync(join(at('same-out'), 'long'), 5, 5);
    assertSameTree(tree, at('same-out'));
    if (!hasKopia) return;
    const kopia = new Kopia(PASSWORD).connect(at('same-repo'));
    const theirs = kopia.json<{ rootEntry: { obj: string } }>('snapshot', 'create', tree);
    const ours = await backUp(repository, tree, LONG);
    expect(ours.rootEntry.objectId).toBe(theirs.rootEntry.obj);
  });

  it('that changed is stored with its changes, and files that stayed are not read', async () => {
    const tree = at('changing');
    makeLong(tree);
    await createTest(at('changing-repo'));
    await using repository = await openTest(at('changing-repo'));
    await backUp(repository, tree, LONG);
    for (let i = 100; i < 1100; i++) fs.rmSync(join(tree, `file-${i}`));
    fs.writeFileSync(join(tree, 'file-1000a'), 'new');
    fs.appendFileSync(join(tree, 'directory-5/inside'), 'more');
    fs.mkdirSync(join(tree, 'directory-5a'));
    const { counters, rootEntry } = await backUp(repository, tree, LONG);
    expect(counters.errors).toBe(0);
    expect(counters.files).toBeLessThan(2 + 2 * 96);
    const names = (await readDirectory(repository, rootEntry.objectId)).map(({ name }) => name);
    expect(names).toContain('file-1000a');
    expect(names).toContain('directory-5a');
    expect(names).not.toContain('file-1000');
  });

  it('is read again where its contents went away, and a cancel leaves what is incomplete', async () => {
    const tree = at('canceled');
    makeLong(tree);
    await createTest(at('canceled-repo'));
    await using repository = await openTest(at('canceled-repo'));
    const first = await backUp(repository, tree, LONG);
    const file = await resolveEntry(repository, `${first.rootEntry.objectId}/file-5`);
    repository.contents.setDeleted(parseObjectId(file.objectId).contentId, true);
    await repository.flush();
    const again = await backUp(repository, tree, LONG);
    expect(again.counters.contentsNew).toBe(1);
    const controller = new AbortController();
    const counters = newUploadCounters();
    let cached = 0;
    Object.defineProperty(counters, 'cachedFiles', {
      get: () => cached,
      set: (count: number) => {
        cached = count;
        if (count === 1200) controller.abort();
      },
    });
    const options = { ...LONG, signal: controller.signal, counters };
    const { rootEntry } = await backUp(repository, tree, options);
    expect(rootEntry.summary?.incomplete).toBe('canceled');
  });
});

/** Scratch files that are open; they have no name. */
function scratchFiles(): string[] {
  const isScratch = (path: string): boolean => {
    try {
      return fs.readlinkSync(path).includes('longshore-scratch-');
    } catch {
      // The descriptor that listed them is gone.
      return false;
    }
  };
  const names = fs.readdirSync('/proc/self/fd');
  return names.map((name) => `/proc/self/fd/${name}`).filter(isScratch);
}

it('a listing that fails after a cancel leaves the entries that were stored before', async () => {
  const tree = at('cut-short');
  fs.mkdirSync(tree);
  // More records than are sorted in memory, so that pages come from a scratch file.
  for (let i = 0; i < 15_000; i++) fs.writeFileSync(join(tree, `${'n'.repeat(240)}${i}`), '');
  age(tree);
  await createTest(at('cut-short-repo'));
  await using repository = await openTest(at('cut-short-repo'));
  await backUp(repository, tree, LONG);
  const controller = new AbortController();
  const counters = newUploadCounters();
  let cached = 0;
  // The last entry of the second page.
  const CANCEL_AT = 2 * 2048;
  Object.defineProperty(counters, 'cachedFiles', {
    get: () => cached,
    set: (count: number) => {
      cached = count;
      if (count !== CANCEL_AT) return;
      controller.abort();
      const files = scratchFiles();
      expect(files).toHaveLength(1);
      for (const path of files) fs.truncateSync(path);
    },
  });
  const options = { ...LONG, signal: controller.signal, counters };
  const { rootEntry } = await backUp(repository, tree, options);
  expect(rootEntry.summary).toMatchObject({ incomplete: 'canceled', files: CANCEL_AT });
  expect(await readDirectory(repository, rootEntry.objectId)).toHaveLength(CANCEL_AT);
  expect(scratchFiles()).toEqual([]);
});

describe('a listing in parts', () => {
  it.each([200, 5000, 1 << 22])(
    'has the order of a whole one, in runs of %d bytes',
    async (runBytes) => {
      const tree = at(`listing-${runBytes}`);
      makeLong(tree);
      await createTest(at(`listing-repo-${runBytes}`));
      await using repository = await openTest(at(`listing-repo-${runBytes}`));
      const pool = repository.dataPath?.pool;
      if (!pool) throw new Error('there is a data path');
      const { entries } = decodeListing(await pool.readDirectory(tree, 1e6));
      const listed = [];
      const options = { pool, signal: new AbortController().signal, onFailure: () => undefined };
      for await (const page of listLong(tree, { ...options, runBytes })) listed.push(...page);
      const text = (bytes: string | Uint8Array): string =>
        Buffer.from(bytes as string).toString('hex');
      const plain = ({ rawName, target, mtimeNs, mode }: (typeof entries)[number]): string =>
        [text(rawName), target && text(target), mtimeNs, mode].join(' ');
      expect(listed.map(plain)).toEqual(entries.map(plain));
    },
  );
});
