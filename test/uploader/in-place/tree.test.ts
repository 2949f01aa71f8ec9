import * as fs from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import { type Repository, writeObject } from '../../../src/repository/index.ts';
import {
  type DirectoryEntry,
  type DirectorySummary,
  encodeDirectory,
} from '../../../src/snapshot/index.ts';
import {
  type Change,
  type InPlaceCounters,
  type InPlaceOptions,
  restoreTreeInPlace,
} from '../../../src/uploader/index.ts';
import { assertSameTree, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../../support/repositories.ts';
import { makeTree } from '../../support/trees.ts';

const work = tempDirectory('in-place');
const at = (...names: string[]): string => join(work, ...names);
let repository: Repository;
let root: DirectoryEntry;
const CHUNK = 128 << 10;

beforeAll(async () => {
  makeTree(at('tree'), 'in-place');
  await createTest(at('repo'), { splitter: 'FIXED-128K' });
  repository = await openTest(at('repo'), { threads: true });
  root = (await backUp(repository, at('tree'))).rootEntry;
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

const inPlace = (
  target: string,
  options: Partial<InPlaceOptions> = {},
  from = root,
): Promise<InPlaceCounters> =>
  restoreTreeInPlace(repository, from, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    // A separate test covers processes that have the files open.
    ignoreOpenFiles: true,
    ...options,
  });

let number = 0;
async function restored(): Promise<string> {
  const target = at(`out-${number++}`);
  await restore(repository, root, target);
  return target;
}

async function planOf(target: string, options: Partial<InPlaceOptions> = {}): Promise<string[]> {
  const changes: string[] = [];
  const onChange = ({ kind, path, bytes }: Change): void => {
    changes.push(`${kind} ${path.slice(target.length + 1)} ${bytes}`);
  };
  await inPlace(target, { dryRun: true, onChange, ...options });
  return changes.sort();
}

describe('a tree that is brought back to a snapshot', () => {
  it('that it is at already is read and not written', async () => {
    const target = await restored();
    const before = fs.statSync(join(target, 'data/big'), { bigint: true }).ctimeNs;
    const result = await inPlace(target);
    expect(result).toMatchObject({ bytesWritten: 0, changed: 0, created: 0, removed: 0 });
    expect(result.bytesCompared).toBeGreaterThan(3_600_000);
    expect(fs.statSync(join(target, 'data/big'), { bigint: true }).ctimeNs).toBe(before);
    expect(await planOf(target)).toEqual([]);
    assertSameTree(at('tree'), target);
  });

  it('gets the contents that differ, of a file with the same size and time too', async () => {
    const target = await restored();
    const big = join(target, 'data/big');
    const { atime, mtime } = fs.statSync(big);
    const { ino } = fs.statSync(big);
    const file = fs.openSync(big, 'r+');
    fs.writeSync(file, 'X', 5 * CHUNK + 7);
    fs.writeSync(file, 'Y', 9 * CHUNK);
    fs.closeSync(file);
    fs.utimesSync(big, atime, mtime);
    expect(await planOf(target)).toEqual([`change data/big ${2 * CHUNK}`]);
    const result = await inPlace(target);
    expect(result).toMatchObject({ bytesWritten: 2 * CHUNK, changed: 1 });
    expect(fs.statSync(big).ino).toBe(ino);
    assertSameTree(at('tree'), target);
  });

  it('keeps what only differs inside with --trust-times', async () => {
    const target = await restored();
    const path = join(target, 'data/big');
    const { atimeNs, mtimeNs } = fs.statSync(path, { bigint: true });
    const file = fs.openSync(path, 'r+');
    fs.writeSync(file, 'X', 7);
    const { posix } = await import('../../../src/base/index.ts');
    posix().setDescriptorTime(file, mtimeNs);
    fs.closeSync(file);
    expect(atimeNs).toBeGreaterThan(0n);
    const trusted = await inPlace(target, { trustTimes: true });
    expect(trusted).toMatchObject({ bytesCompared: 0, bytesWritten: 0 });
    expect(fs.readFileSync(path).subarray(7, 8).toString()).toBe('X');
    expect(await inPlace(target)).toMatchObject({ bytesWritten: CHUNK });
  });

  it('keeps all it has where the snapshot is of a raw volume, or has a name that no file can have', async () => {
    fs.writeFileSync(at('image'), noise('image', CHUNK));
    const raw = (await backUp(repository, at('image'), { block: true })).rootEntry;
    const target = await restored();
    await expect(inPlace(target, {}, raw)).rejects.toThrow('this snapshot is of a raw volume');
    const good = { ...raw, name: 'good', type: 'f' as const, size: 0 };
    const entries = [good, { ...good, name: 'un/safe' }];
    const { contents, splitter } = repository;
    const summary = raw.summary as DirectorySummary;
    const objectId = await writeObject(contents, [encodeDirectory(entries, summary)], {
      prefix: 'k',
      compressor: undefined,
      metadataCompressor: undefined,
      splitter,
      indexSplitter: splitter,
    });
    await expect(inPlace(target, {}, { ...raw, objectId })).rejects.toThrow('unsafe name');
    expect(fs.existsSync(join(target, 'data/big'))).toBe(true);
  });

  it('loses what the snapshot does not have, but for what it cannot have', async () => {
    const target = await restored();
    const { execFileSync } = await import('node:child_process');
    fs.mkdirSync(join(target, 'new/deep/er'), { recursive: true });
    fs.writeFileSync(join(target, 'new/deep/er/file'), 'new');
    fs.symlinkSync('/etc', join(target, 'new/deep/link'));
    fs.writeFileSync(join(target, 'text/new'), 'new');
    fs.writeFileSync(Buffer.concat([Buffer.from(`${target}/`), Buffer.of(0xff, 0x41)]), 'latin');
    execFileSync('mkfifo', [join(target, 'pipe')]);
    fs.mkdirSync(join(target, 'lost+found'));
    fs.mkdirSync(join(target, 'text/lost+found'));
    expect(await planOf(target)).toEqual([
      'attributes  0',
      'attributes text 0',
      'remove new 0',
      'remove new/deep 0',
      'remove new/deep/er 0',
      'remove new/deep/er/file 3',
      'remove new/deep/link 0',
      'remove text/lost+found 0',
      'remove text/new 3',
      'remove \ufffdA 5',
    ]);
    expect(await inPlace(target)).toMatchObject({ removed: 8, kept: 2, bytesWritten: 0 });
    expect(fs.existsSync('/etc/passwd')).toBe(true);
    expect(fs.existsSync(join(target, 'pipe')) && fs.existsSync(join(target, 'lost+found'))).toBe(
      true,
    );
    fs.rmSync(join(target, 'pipe'));
    fs.rmdirSync(join(target, 'lost+found'));
    await inPlace(target);
    assertSameTree(at('tree'), target);
  });

  it('finds a file whose name is not UTF-8 by its bytes', async () => {
    const source = at('odd-names');
    fs.mkdirSync(source);
    const odd = Buffer.concat([Buffer.from(`${source}/`), Buffer.of(0xe3, 0x81, 0x41)]);
    fs.writeFileSync(odd, 'odd');
    const { rootEntry } = await backUp(repository, source);
    fs.writeFileSync(join(source, 'new'), 'new');
    expect(await inPlace(source, {}, rootEntry)).toMatchObject({
      kept: 0,
      created: 0,
      unchanged: 1,
      removed: 1,
    });
    expect(fs.readFileSync(odd, 'utf8')).toBe('odd');
  });

  it('keeps it with --keep-extra, but for what an earlier run did not finish', async () => {
    const target = await restored();
    fs.writeFileSync(join(target, 'text/new'), 'new');
    fs.writeFileSync(join(target, 'text/.longshore-restore-0123456789abcdef'), 'half');
    fs.writeFileSync(join(target, 'text/.longshore-restore-mine'), 'mine');
    expect(await inPlace(target, { keepExtra: true })).toMatchObject({ removed: 0, kept: 2 });
    expect(fs.readdirSync(join(target, 'text')).filter((name) => /new|long/.test(name))).toEqual([
      '.longshore-restore-mine',
      'new',
    ]);
  });

  it('gets back types, links and files with other names', async () => {
    const target = await restored();
    const outside = at(`outside-${number}`);
    fs.mkdirSync(outside);
    fs.writeFileSync(join(outside, 'mine'), 'mine');
    const change = (name: string, make: (path: string) => void): void => {
      fs.rmSync(join(target, name), { recursive: true });
      make(join(target, name));
    };
    change('README', (path) => fs.mkdirSync(join(path, 'a/b'), { recursive: true }));
    change('many/1', (path) => fs.symlinkSync(outside, path));
    change('many/2', (path) => fs.writeFileSync(path, 'file'));
    change('text/link', (path) => fs.writeFileSync(path, 'file'));
    change('dangling', (path) => fs.symlinkSync('elsewhere', path));
    change('data/copy-of-300k', (path) => fs.symlinkSync(join(outside, 'mine'), path));
    fs.linkSync(join(target, 'data/random-300k'), join(outside, 'same'));
    fs.linkSync(join(target, 'data/big'), join(outside, 'other'));
    fs.appendFileSync(join(outside, 'other'), 'more');
    const plan = await planOf(target);
    expect(plan).toEqual(
      expect.arrayContaining([
        'replace README 15',
        'replace many/1 0',
        'replace many/2 0',
        'replace text/link 0',
        'replace dangling 0',
        'replace data/copy-of-300k 300000',
        'replace data/big 3000000',
      ]),
    );
    await inPlace(target);
    assertSameTree(at('tree'), target);
    expect(fs.readFileSync(join(outside, 'mine'), 'utf8')).toBe('mine');
    expect(fs.readdirSync(outside).sort()).toEqual(['mine', 'other', 'same']);
    expect(fs.statSync(join(outside, 'other')).size).toBe(3_000_004);
    expect(fs.statSync(join(outside, 'same')).ino).toBe(
      fs.statSync(join(target, 'data/random-300k')).ino,
    );
  });

  it('keeps a directory in the way of a file when something in it is to stay', async () => {
    const target = await restored();
    fs.rmSync(join(target, 'README'));
    fs.mkdirSync(join(target, 'README/logs'), { recursive: true });
    fs.writeFileSync(join(target, 'README/logs/a.log'), 'log');
    fs.writeFileSync(join(target, 'README/other'), 'other');
    const { Selection } = await import('../../../src/uploader/index.ts');
    const selection = new Selection({ exclude: ['*.log'] });
    for (const options of [{ keepExtra: true }, { selection }]) {
      await expect(inPlace(target, options)).rejects.toMatchObject({
        code: 'RESTORE_INCOMPLETE',
        message: `cannot restore ${join(target, 'README')}: a directory is in the way, with files that are to be kept: move it elsewhere`,
      });
      expect(fs.readFileSync(join(target, 'README/logs/a.log'), 'utf8')).toBe('log');
      expect(fs.readdirSync(target).filter((name) => name.startsWith('.'))).toEqual([]);
    }
    // The directory stays untouched unless all of it may be removed.
    expect(fs.existsSync(join(target, 'README/other'))).toBe(true);
    await inPlace(target);
    assertSameTree(at('tree'), target);
  });

  it('gets back lengths, holes and attributes', async () => {
    const target = await restored();
    fs.truncateSync(join(target, 'data/big'), 1_000_000);
    fs.appendFileSync(join(target, 'data/random-300k'), 'more');
    fs.truncateSync(join(target, 'data/sparse'), 0);
    fs.chmodSync(join(target, 'bin/tool'), 0o600);
    fs.chmodSync(join(target, 'many'), 0o700);
    fs.writeFileSync(join(target, 'empty'), 'no more');
    const result = await inPlace(target);
    assertSameTree(at('tree'), target);
    expect(result).toMatchObject({ changed: 4, attributes: 1 });
    // One content of the sparse file has data.
    expect(result.bytesWritten).toBeLessThan(2_000_000 + 2 * CHUNK);
    expect(fs.statSync(join(target, 'data/sparse')).blocks).toBeLessThan(1000);
  });
});

describe('a bound on what is written', () => {
  it('with a bound, is not emptied by a snapshot that holds nothing', async () => {
    fs.mkdirSync(at('nothing'));
    const empty = (await backUp(repository, at('nothing'))).rootEntry;
    const target = await restored();
    const refused = inPlace(target, { maxWriteBytes: 1 << 30 }, empty);
    await expect(refused).rejects.toMatchObject({ code: 'WRITE_LIMIT' });
    assertSameTree(at('tree'), target);
    await inPlace(target, { maxWriteBytes: 1 << 30, keepExtra: true }, empty);
    await inPlace(target, {}, empty);
    expect(fs.readdirSync(target)).toEqual([]);
    await inPlace(target, { maxWriteBytes: 1 << 30 }, empty);
  });

  it('leaves all as it is when more would be written', async () => {
    const target = await restored();
    fs.rmSync(join(target, 'data/big'));
    fs.writeFileSync(join(target, 'extra'), 'extra');
    await expect(inPlace(target, { maxWriteBytes: 3_000_004 })).rejects.toMatchObject({
      code: 'WRITE_LIMIT',
      message: expect.stringContaining('nothing was changed') as string,
    });
    expect(fs.readFileSync(join(target, 'extra'), 'utf8')).toBe('extra');
    expect(await inPlace(target, { maxWriteBytes: 3_000_005 })).toMatchObject({
      created: 1,
      bytesRemoved: 5,
    });
    assertSameTree(at('tree'), target);
  });

  it('counts what would be removed: files, whole directories, ends of files, and what is in the way', async () => {
    const target = await restored();
    const put = (path: string, bytes: number): void => {
      fs.mkdirSync(join(target, path, '..'), { recursive: true });
      fs.writeFileSync(join(target, path), noise(path, bytes));
    };
    put('new/deep/a', 1000);
    put('b', 200);
    fs.appendFileSync(join(target, 'data/random-300k'), 'more');
    fs.rmSync(join(target, 'README'));
    put('README/in-the-way', 30);
    fs.rmSync(join(target, 'many'), { recursive: true });
    put('many', 7);
    const counted = await inPlace(target, { dryRun: true });
    const bytesRemoved = 1000 + 200 + 4 + 30 + 7;
    expect(counted).toMatchObject({ bytesRemoved, removed: 6 });
    const most = counted.bytesDifferent + bytesRemoved;
    const refused = inPlace(target, { maxWriteBytes: most - 1 });
    await expect(refused).rejects.toMatchObject({ code: 'WRITE_LIMIT' });
    expect(fs.existsSync(join(target, 'new/deep/a'))).toBe(true);
    const done = await inPlace(target, { maxWriteBytes: most });
    expect(done).toMatchObject({ bytesRemoved, removed: 6 });
    assertSameTree(at('tree'), target);
  });

  it('with what is to be kept: a directory in the way is refused when it is only looked at, as when it is restored', async () => {
    const target = await restored();
    fs.rmSync(join(target, 'README'));
    fs.mkdirSync(join(target, 'README'));
    fs.writeFileSync(join(target, 'README/kept'), 'kept');
    for (const options of [{ dryRun: true }, { maxWriteBytes: 1e9 }, {}]) {
      const refused = inPlace(target, { keepExtra: true, ...options });
      await expect(refused).rejects.toThrow('a directory is in the way, with files that are to be');
    }
    expect(fs.readFileSync(join(target, 'README/kept'), 'utf8')).toBe('kept');
  });
});

it('any edits of a tree are undone, and no more is written than the contents they touch', async () => {
  const files = ['data/big', 'data/random-300k', 'data/sparse', 'text/repeated.txt', 'README'];
  const edit = fc.record({
    file: fc.constantFrom(...files),
    kind: fc.constantFrom('write', 'truncate', 'append', 'remove', 'touch', 'chmod'),
    place: fc.double({ min: 0, max: 1, noNaN: true }),
    length: fc.integer({ min: 1, max: 200_000 }),
  });
  const target = await restored();
  await fc.assert(
    fc.asyncProperty(fc.array(edit, { minLength: 1, maxLength: 6 }), async (edits) => {
      let bound = 0;
      for (const { file, kind, place, length } of edits) {
        const path = join(target, file);
        const original = fs.statSync(join(at('tree'), file)).size;
        const rounded = (bytes: number): number => (Math.ceil(bytes / CHUNK) + 1) * CHUNK;
        if (!fs.existsSync(path)) continue;
        const { size } = fs.statSync(path);
        const offset = Math.floor(place * size);
        if (kind === 'write') {
          const descriptor = fs.openSync(path, 'r+');
          fs.writeSync(descriptor, noise(`${offset}`, length), 0, length, offset);
          fs.closeSync(descriptor);
          bound += rounded(length);
        } else if (kind === 'truncate') {
          fs.truncateSync(path, offset);
          bound += rounded(Math.max(0, original - offset));
        } else if (kind === 'append') fs.appendFileSync(path, 'more');
        else if (kind === 'remove') {
          fs.rmSync(path);
          bound += rounded(original);
        } else if (kind === 'touch') fs.utimesSync(path, 1, 1);
        else fs.chmodSync(path, 0o611);
      }
      const { bytesWritten } = await inPlace(target);
      expect(bytesWritten).toBeLessThanOrEqual(bound);
      assertSameTree(at('tree'), target);
    }),
    { numRuns: 25 },
  );
});
