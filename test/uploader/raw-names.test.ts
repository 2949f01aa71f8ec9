import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { isCode, silentLogger } from '../../src/base/index.ts';
import { type Repository, writeObject } from '../../src/repository/index.ts';
import {
  type DirectoryEntry,
  diffTrees,
  encodeDirectory,
  readDirectory,
  resolveEntry,
} from '../../src/snapshot/index.ts';
import { newRestoreCounters, planRestore, restoreTreeInPlace } from '../../src/uploader/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';

const work = tempDirectory('raw-names');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
/** A path in the encoding of the test: one character for each byte. */
const raw = (...parts: string[]): Buffer => Buffer.from(parts.join('/'), 'latin1');
/** Older than the time within which files are read again anyway. */
const LONG_AGO = 1_000_000_000;

function write(path: string, text: string): void {
  fs.writeFileSync(raw(path), text);
  fs.utimesSync(raw(path), LONG_AGO, LONG_AGO);
}

/** Two files, two directories and two links whose names become the same in UTF-8. */
function tree(name: string): string {
  const path = at(`${name}-tree`);
  fs.mkdirSync(path);
  write(join(path, 'plain'), 'plain');
  write(join(path, 'f\xfe'), 'one');
  write(join(path, 'f\xff'), 'two');
  fs.writeFileSync(join(path, 'f\ufffd'), 'real character');
  for (const [directory, text] of [
    ['d\xfe', 'three'],
    ['d\xff', 'fours'],
  ] as const) {
    fs.mkdirSync(raw(path, directory));
    write(join(path, directory, 'f\xe9'), text);
    write(join(path, directory, 'inside'), text);
  }
  fs.linkSync(raw(path, 'f\xff'), raw(path, 'd\xff', 'h\xff'));
  fs.linkSync(raw(path, 'f\xff'), raw(path, 'h\xfe'));
  fs.symlinkSync(raw('to\xfe\xff'), raw(path, 'l\xfe'));
  fs.symlinkSync(raw('to\xff'), raw(path, 'l\xff'));
  fs.symlinkSync(raw('d\xff/gone\xff'), join(path, 'link'));
  return path;
}

/** All that is below a path, by its bytes. */
function found(path: string): Record<string, string> {
  const all: Record<string, string> = {};
  const visit = (directory: Buffer, shown: string): void => {
    for (const name of fs.readdirSync(directory, { encoding: 'buffer' })) {
      const here = Buffer.concat([directory, Buffer.from('/'), name]);
      const at = `${shown}/${name.toString('latin1')}`;
      const stat = fs.lstatSync(here);
      if (stat.isDirectory()) visit(here, at);
      all[at] = stat.isDirectory()
        ? 'd'
        : stat.isSymbolicLink()
          ? `-> ${fs.readlinkSync(here, { encoding: 'buffer' }).toString('latin1')}`
          : fs.readFileSync(here, 'utf8');
    }
  };
  visit(Buffer.from(path), '');
  return all;
}

async function opened(name: string): Promise<Repository> {
  await createTest(at(`${name}-repository`));
  return openTest(at(`${name}-repository`), { threads: true });
}

const inPlace = (
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options = {},
): ReturnType<typeof restoreTreeInPlace> =>
  restoreTreeInPlace(repository, root, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    ...options,
  });

it('restores names and link targets that are not UTF-8 byte for byte', async () => {
  const path = tree('whole');
  await using repository = await opened('whole');
  const { rootEntry } = await backUp(repository, path);
  const target = at('whole-target');
  const counters = await restore(repository, rootEntry, target);
  expect(counters).toMatchObject({ errors: 0, attributesNotSet: { entries: 0 } });
  expect(found(target)).toEqual(found(path));
  expect(fs.statSync(raw(target, 'h\xfe')).nlink).toBe(3);
  // A second run finds all as it is.
  expect(await restore(repository, rootEntry, target)).toMatchObject({ files: 0, symlinks: 0 });
  const before = found(target);
  await restore(repository, rootEntry, target, { overwrite: 'always' });
  await restore(repository, rootEntry, target, { overwrite: 'never' });
  expect(found(target)).toEqual(before);
});

it('brings such names back in place, and removes only what the snapshot does not have', async () => {
  const path = tree('place');
  await using repository = await opened('place');
  const { rootEntry } = await backUp(repository, path);
  const wanted = found(path);
  const same = await inPlace(repository, rootEntry, path);
  expect(same).toMatchObject({ created: 0, changed: 0, replaced: 0, removed: 0, kept: 0 });
  fs.writeFileSync(raw(path, 'f\xff'), 'other');
  fs.rmSync(raw(path, 'd\xfe'), { recursive: true });
  fs.rmSync(raw(path, 'l\xff'));
  // Names that look like those of the snapshot and are others.
  write(join(path, 'l\xfd'), 'extra');
  fs.writeFileSync(join(path, 'd\ufffd'), 'extra');
  const counted = await inPlace(repository, rootEntry, path, { dryRun: true });
  expect(counted).toMatchObject({ created: 4, removed: 2 });
  await inPlace(repository, rootEntry, path);
  expect(found(path)).toEqual(wanted);
});

it('keeps names that look like a name of a snapshot without the bytes', async () => {
  const path = tree('kopia-like');
  await using repository = await opened('kopia-like');
  const { rootEntry } = await backUp(repository, path);
  const root = await changed(repository, rootEntry, (entry) => ({ ...entry, extra: undefined }));
  const target = at('kopia-like-target');
  fs.mkdirSync(target);
  write(join(target, 'f\xfd'), 'perhaps the file of the snapshot');
  expect(await inPlace(repository, root, target)).toMatchObject({ removed: 0, kept: 1 });
  expect(found(target)).toMatchObject({ '/f\xfd': 'perhaps the file of the snapshot' });
});

it('restores one file by its shown path under its own name', async () => {
  const path = tree('single');
  await using repository = await opened('single');
  const { rootEntry, id } = await backUp(repository, path);
  const entries = await readDirectory(repository, rootEntry.objectId);
  const shown = entries.find(({ extra }) => extra?.includes(raw('f\xfe').toString('base64')));
  const entry = await resolveEntry(repository, `${id}/${shown?.name}`);
  fs.mkdirSync(at('single-target'));
  await restore(repository, entry, at('single-target'));
  expect(found(at('single-target'))).toEqual({ '/f\xfe': 'one' });
  await restore(repository, entry, at('single-named'));
  expect(fs.readFileSync(at('single-named'), 'utf8')).toBe('one');
});

it('tells in a dry run that such entries are there already', async () => {
  const path = tree('plan');
  await using repository = await opened('plan');
  const { rootEntry } = await backUp(repository, path);
  const { signal } = new AbortController();
  const counters = await planRestore(repository, rootEntry, path, { signal }, () =>
    Promise.resolve(),
  );
  expect(counters).toMatchObject({ files: 0, symlinks: 0, skipped: 13 });
});

it('finds files unchanged by their bytes and not by the name that is shown', async () => {
  const path = tree('unchanged');
  await using repository = await opened('unchanged');
  await backUp(repository, path);
  const again = await backUp(repository, path);
  expect(again.counters.bytesRead).toBeLessThanOrEqual('real character'.length);
  // Two files have the same size and time. The first is deleted, and the second gets its shown
  // name.
  for (const gone of ['f\xfe', 'd\xfe']) fs.rmSync(raw(path, gone), { recursive: true });
  const { rootEntry, counters } = await backUp(repository, path);
  expect(counters.bytesRead).toBeLessThanOrEqual('real character'.length);
  await restore(repository, rootEntry, at('unchanged-target'));
  expect(found(at('unchanged-target'))).toEqual(found(path));
});

/** A root as somebody may have written it who can write to the bucket. */
async function changed(
  repository: Repository,
  root: DirectoryEntry,
  change: (entry: DirectoryEntry) => DirectoryEntry,
): Promise<DirectoryEntry> {
  const entries = (await readDirectory(repository, root.objectId)).map(change);
  const { splitter } = repository;
  const options = { compressor: undefined, metadataCompressor: undefined, splitter };
  const bytes = encodeDirectory(entries, root.summary as NonNullable<typeof root.summary>);
  const written = { ...options, prefix: 'k' as const, indexSplitter: splitter };
  return { ...root, objectId: await writeObject(repository.contents, [bytes], written) };
}

describe('a name of which the bytes are hostile', () => {
  const base64 = (text: string): string => raw(text).toString('base64');
  it.each([
    ['leads out of its directory', 'x\ufffd', base64('../outside\xff')],
    ['holds a slash as the shown name does', '../x\ufffd', base64('../x\xff')],
    ['holds a zero', 'x\ufffd', base64('x\0\xff')],
    ['is the directory itself', '.', base64('.')],
    ['is the directory above', '..', base64('..')],
    ['is empty', 'x\ufffd', ''],
    ['is the name of another entry', 'x\ufffd', base64('sibling')],
    ['has nothing to do with the shown name', 'x\ufffd', base64('y\xff')],
    ['is that of another entry that is not UTF-8', 'x\ufffd~2', base64('x\xff')],
    ['is too long', `${'x'.repeat(300)}\ufffd`, base64(`${'x'.repeat(300)}\xff`)],
    ['is no base64', 'x\ufffd', '//../'],
  ])('%s', async (what, name, rawName) => {
    const path = at(`${what}-tree`);
    fs.mkdirSync(path);
    write(join(path, 'sibling'), 'sibling');
    write(join(path, 'x\xff'), 'sibling');
    write(join(path, 'z'), 'hostile');
    fs.mkdirSync(join(path, 'y'));
    write(join(path, 'y/z'), 'hostile');
    await using repository = await opened(what);
    const { rootEntry } = await backUp(repository, path);
    // Directories come first, and the first of two entries gets the name.
    for (const victim of name.endsWith('~2') ? ['z'] : ['z', 'y']) {
      const root = await changed(repository, rootEntry, (entry) =>
        entry.name === victim ? { ...entry, name, extra: JSON.stringify({ rawName }) } : entry,
      );
      const below = new RegExp(`^/${victim}(/|$)`);
      const wanted = Object.fromEntries(
        Object.entries(found(path)).filter(([key]) => !below.test(key)),
      );
      const target = at(`${what}-${victim}/target`);
      const counters = newRestoreCounters();
      const failure: unknown = await restore(repository, root, target, { counters }).catch(
        (error: unknown) => error,
      );
      expect(isCode(failure, 'RESTORE_INCOMPLETE')).toBe(true);
      expect(counters.errors).toBe(1);
      expect(found(at(`${what}-${victim}`))).toEqual({
        '/target': 'd',
        ...Object.fromEntries(Object.entries(wanted).map(([key, v]) => [`/target${key}`, v])),
      });
      // In place, no file is removed for such a snapshot, not even an extra file.
      write(join(target, 'extra'), 'extra');
      for (const removeFirst of [false, true]) {
        await expect(inPlace(repository, root, target, { removeFirst })).rejects.toThrow();
        expect(found(target)).toEqual({ ...wanted, '/extra': 'extra' });
      }
    }
  });
});

describe.skipIf(!hasKopia)('beside Kopia', () => {
  beforeAll(() => fs.mkdirSync(at('kopia-restored')));
  it('Kopia verifies, restores and backs up such a tree, and the next backup is whole', async () => {
    const path = tree('kopia');
    const kopia = new Kopia(PASSWORD);
    kopia.create(at('kopia-repository'));
    const open = (): Promise<Repository> => openTest(at('kopia-repository'), { threads: true });
    const source = { host: 'h', userName: 'u', path };
    const ours = await (async () => {
      await using repository = await open();
      return await backUp(repository, path, { source });
    })();
    kopia.run('snapshot', 'verify', '--verify-files-percent=100');
    kopia.run('snapshot', 'restore', ours.id, at('kopia-restored'));
    const contents = Object.values(found(at('kopia-restored')));
    expect(contents.toSorted()).toEqual(Object.values(found(path)).toSorted());
    kopia.run('snapshot', 'create', path, '--override-source', `u@h:${path}`);
    kopia.run('maintenance', 'run', '--full', '--safety=none');
    await using repository = await open();
    const { rootEntry } = await backUp(repository, path, { source });
    await restore(repository, rootEntry, at('kopia-target'));
    expect(found(at('kopia-target'))).toEqual(found(path));
    kopia.run('snapshot', 'verify', '--verify-files-percent=100');
  }, 120_000);
});

it('tells two snapshots apart whose names look the same', async () => {
  const path = at('diff-tree');
  fs.mkdirSync(path);
  write(join(path, 'f\xfe'), 'same');
  await using repository = await opened('diff');
  const before = await backUp(repository, path);
  fs.renameSync(raw(path, 'f\xfe'), raw(path, 'f\xff'));
  const after = await backUp(repository, path);
  const changes: string[] = [];
  for await (const { kind, path: at } of diffTrees(repository, before.rootEntry, after.rootEntry)) {
    if (at !== '') changes.push(`${kind} ${at}`);
  }
  expect(changes).toEqual(['removed f\ufffd', 'added f\ufffd']);
});
