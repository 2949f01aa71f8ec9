import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { pinnedPath, silentLogger } from '../../../src/base/index.ts';
import type { Repository } from '../../../src/repository/index.ts';
import {
  DEFAULT_POLICY,
  type DirectoryEntry,
  loadPolicyTree,
  putPolicy,
  resolveEntry,
} from '../../../src/snapshot/index.ts';
import {
  type InPlaceCounters,
  type InPlaceOptions,
  restoreTreeInPlace,
  type RulesOfBackup,
} from '../../../src/uploader/index.ts';
import { TargetDirectory } from '../../../src/uploader/restore/target-directory.ts';
import { assertSameTree, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, CLIENT, createTest, openTest } from '../../support/repositories.ts';

/** The removals of a restore in place, and their order. */
const work = tempDirectory('removal');
const at = (...names: string[]): string => join(work, ...names);
let repository: Repository;
beforeAll(async () => {
  await createTest(at('repo'));
  repository = await openTest(at('repo'));
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

const inPlace = (
  from: DirectoryEntry,
  target: string,
  options: Partial<InPlaceOptions> = {},
  by = repository,
): Promise<InPlaceCounters> =>
  restoreTreeInPlace(by, from, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    ignoreOpenFiles: true,
    ...options,
  });

/** Files by path; directories are made as needed. */
function write(root: string, files: Readonly<Record<string, string | Uint8Array>>): string {
  for (const [path, content] of Object.entries(files)) {
    fs.mkdirSync(dirname(at(root, path)), { recursive: true });
    fs.writeFileSync(at(root, path), content);
  }
  return at(root);
}

const filesIn = (root: string): string[] =>
  fs
    .readdirSync(at(root), { recursive: true, encoding: 'utf8' })
    .filter((path) => !fs.lstatSync(at(root, path)).isDirectory())
    .sort();

describe('what the snapshot does not have', () => {
  const files = { a: 'a', 'sub/b': noise('b', 300_000), 'sub/deep/c': 'c' };
  const newer = { 'new/1': '1', 'new/2': '2', 'sub/3': '3', a: 'newer' };

  it.each(['data', 'directories'])('stays if the repository lacks %s of it', async (what) => {
    await createTest(at(`lossy-${what}`));
    const lossy = await openTest(at(`lossy-${what}`));
    try {
      const { rootEntry } = await backUp(lossy, write(`lossy-source-${what}`, files));
      const prefix = what === 'data' ? 'p' : 'q';
      const packs = fs.readdirSync(at(`lossy-${what}`), { recursive: true, encoding: 'utf8' });
      for (const pack of packs) {
        const path = at(`lossy-${what}`, pack);
        const isPack = new RegExp(`(^|/)${prefix}`).test(pack) && fs.existsSync(path);
        if (isPack && fs.statSync(path).isFile()) fs.rmSync(path);
      }
      await using fresh = await openTest(at(`lossy-${what}`));
      const target = `lossy-out-${what}`;
      write(target, newer);
      const before = filesIn(target);
      for (const removeFirst of [true, false]) {
        await expect(inPlace(rootEntry, at(target), { removeFirst }, fresh)).rejects.toMatchObject({
          code: 'DAMAGED_BLOB',
        });
      }
      expect(filesIn(target)).toEqual(before);
      expect(fs.readFileSync(at(target, 'a'), 'utf8')).toBe('newer');
    } finally {
      await lossy.close();
    }
  });

  it('stays if another entry cannot be restored, and is removed by the next run', async () => {
    const { rootEntry } = await backUp(repository, write('source', files));
    write('failing', newer);
    const pool = repository.dataPath?.pool ?? expect.fail();
    const open = pool.open.bind(pool);
    pool.open = (items) =>
      Promise.resolve({
        notSet: [],
        failures: items.map((_, index) => ({ index, code: 'EIO', message: 'EIO: i/o error' })),
      });
    try {
      await expect(inPlace(rootEntry, at('failing'))).rejects.toMatchObject({
        code: 'RESTORE_INCOMPLETE',
      });
    } finally {
      pool.open = open;
    }
    expect(filesIn('failing')).toEqual(['a', 'new/1', 'new/2', 'sub/3']);
    await inPlace(rootEntry, at('failing'));
    // Removals change times of directories, which are set again.
    assertSameTree(at('source'), at('failing'));
  });
});

describe('names that the rules of the backup left out', () => {
  const TAG = 'Signature: 8a477f597d28d172789f06886806bc55\n';
  const kept = {
    'local.conf': 'mine',
    'model.big': noise('big', 200_000),
    'cache/CACHEDIR.TAG': TAG,
    'cache/entry': 'c',
    'cache/deep/entry': 'c',
    'sub/x.tmp': 't',
    'sub/private/file': 'p',
  };
  const stored = {
    '.kopiaignore': 'local.conf\n',
    data: 'data',
    'sub/.kopiaignore': '*.tmp\nprivate/\n',
    'sub/y': 'y',
  };
  let root: DirectoryEntry;
  let excluded: RulesOfBackup;
  beforeAll(async () => {
    const path = write('rules', { ...stored, ...kept });
    const source = { host: CLIENT.hostname, userName: CLIENT.username, path };
    const files = { ...DEFAULT_POLICY.files, maxFileSize: 100_000 };
    await putPolicy(repository, source, { ...DEFAULT_POLICY, files });
    await repository.flush();
    root = (await backUp(repository, path)).rootEntry;
    excluded = { policies: await loadPolicyTree(repository, source), root, path: '' };
  });

  it('stay where they are, in an unchanged volume and beside new entries', async () => {
    write('rules', { 'new/file': 'n', 'new/local.conf': 'mine', 'sub/new': 'n' });
    const { kept: count } = await inPlace(root, at('rules'), { excluded });
    const mine = [...Object.keys({ ...stored, ...kept }), 'new/local.conf'];
    expect(filesIn('rules')).toEqual(mine.sort());
    expect(count).toBeGreaterThan(0);
  });

  it('stay where the target has other ignore files', async () => {
    write('other', { ...kept, '.kopiaignore': 'data\n', data: 'newer', extra: 'e' });
    await inPlace(root, at('other'), { excluded });
    expect(filesIn('other')).toEqual(Object.keys({ ...stored, ...kept }).sort());
    expect(fs.readFileSync(at('other/data'), 'utf8')).toBe('data');
  });

  it('are no hiding place: rules that the target got after the backup protect nothing', async () => {
    write('hidden', { ...stored, '.kopiaignore': '*\n', secret: 's' });
    await inPlace(root, at('hidden'), { excluded });
    expect(filesIn('hidden')).toEqual(Object.keys(stored).sort());
  });

  it('keep a directory from being replaced by a file', async () => {
    write('in-the-way', stored);
    fs.rmSync(at('in-the-way/sub/y'));

    write('in-the-way', { 'sub/y/x.tmp': 't', 'sub/y/other': 'o' });
    await expect(inPlace(root, at('in-the-way'), { excluded })).rejects.toThrow('is in the way');
    expect(filesIn('in-the-way')).toContain('sub/y/x.tmp');
    expect(filesIn('in-the-way')).toContain('sub/y/other');
  });

  it('are known for a directory of the snapshot, too', async () => {
    const sub = await resolveEntry(repository, `${root.objectId}/sub`);
    write('part', { 'x.tmp': 't', 'local.conf': 'mine', y: 'newer', extra: 'e' });
    await inPlace(sub, at('part'), { excluded: { ...excluded, path: 'sub' } });
    expect(filesIn('part')).toEqual(['.kopiaignore', 'local.conf', 'x.tmp', 'y']);
  });

  it('are counted as kept by a dry run, and are removed if that is asked for', async () => {
    write('asked', { ...stored, ...kept });
    expect(await inPlace(root, at('asked'), { excluded, dryRun: true })).toMatchObject({
      removed: 0,
    });
    await inPlace(root, at('asked'));
    expect(filesIn('asked')).toEqual(Object.keys(stored).sort());
  });
});

const FILE_SYSTEMS = {
  /** SMB, ext4 with casefold: ignores case, and keeps the first spelling. */
  'ignores case': { isSame: (name: string) => name.toLowerCase(), stored: (name: string) => name },
  /** VFAT, Windows servers: drops dots at the end. */
  'drops dots': {
    isSame: (name: string) => name.replace(/\.+$/, ''),
    stored: (name: string) => name.replace(/\.+$/, ''),
  },
};

/** Paths as on a file system that finds an entry under other names. */
async function onFileSystem(
  kind: keyof typeof FILE_SYSTEMS,
  task: () => Promise<void>,
): Promise<void> {
  const { isSame, stored } = FILE_SYSTEMS[kind];
  const own = Object.getOwnPropertyDescriptor(TargetDirectory.prototype, 'pathOf');
  const pathOf = own?.value as TargetDirectory['pathOf'];
  const spy = vi.spyOn(TargetDirectory.prototype, 'pathOf');
  spy.mockImplementation(function (this: TargetDirectory, name) {
    const text = String(name);
    if (text === '.' || text === '..') return pathOf.call(this, name);
    const names = fs.readdirSync(`${pinnedPath(this.descriptor)}/.`);
    const found = names.find((each) => isSame(each) === isSame(text));
    return pathOf.call(this, found ?? stored(text));
  });
  try {
    await task();
  } finally {
    spy.mockRestore();
  }
}

describe('an entry that the file system lists under another name', () => {
  const bytes = noise('other-name', 300_000);

  it('is that of the snapshot, where case does not matter', async () => {
    const stored = { 'Report.txt': 'report', 'Data/File': bytes };
    const { rootEntry } = await backUp(repository, write('spelling', stored));
    for (const removeFirst of [false, true]) {
      const target = `ignores-case-${removeFirst}`;
      write(target, { 'report.txt': 'newer', 'data/FILE': 'newer', EXTRA: 'e', 'data/more': 'm' });
      await onFileSystem('ignores case', async () => {
        expect(await inPlace(rootEntry, at(target), { dryRun: true })).toMatchObject({
          removed: 2,
          changed: 2,
          created: 0,
        });
        await inPlace(rootEntry, at(target), { removeFirst });
      });
      expect(filesIn(target)).toEqual(['data/FILE', 'report.txt']);
      expect(fs.readFileSync(at(target, 'report.txt'), 'utf8')).toBe('report');
      expect(bytes.equals(fs.readFileSync(at(target, 'data/FILE')))).toBe(true);
    }
  });

  it('is that of the snapshot, where dots at the end are dropped', async () => {
    const { rootEntry } = await backUp(repository, write('dots', { 'a.': 'a', b: 'b' }));
    write('drops-dots', { extra: 'e' });
    await onFileSystem('drops dots', async () => {
      await inPlace(rootEntry, at('drops-dots'));
      await inPlace(rootEntry, at('drops-dots'));
    });
    expect(filesIn('drops-dots')).toEqual(['a', 'b']);
  });

  it('is an extra entry on other file systems', async () => {
    const { rootEntry } = await backUp(repository, write('plain-names', { Report: 'report' }));
    write('minds-case', { report: 'r', 'Report.': 'r' });
    await inPlace(rootEntry, at('minds-case'));
    expect(filesIn('minds-case')).toEqual(['Report']);
  });
});
