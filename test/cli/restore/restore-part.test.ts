import * as fs from 'node:fs';
import { join, relative } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Ran, runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../../support/repositories.ts';

const work = tempDirectory('restore-part');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (...names: string[]): string => join(work, ...names);
const repo = at('repo');
vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
const run = (...words: string[]): Promise<Ran> =>
  runHere('snapshot', ...words, '--repo', repo, '--client', 'tester@testhost');

/** Everything below, directories with a slash at the end. */
const below = (path: string): string[] =>
  fs
    .readdirSync(path, { recursive: true, withFileTypes: true })
    .map(
      (entry) =>
        relative(path, join(entry.parentPath, entry.name)) + (entry.isDirectory() ? '/' : ''),
    )
    .sort();

beforeAll(async () => {
  for (const path of [
    'etc/app/a.conf',
    'etc/app/b.log',
    'etc/c.conf',
    'var/deep/d.log',
    'var/e',
    'empty/x/y',
  ]) {
    fs.mkdirSync(join(at('tree'), path, '..'), { recursive: true });
    fs.writeFileSync(join(at('tree'), path), path);
  }
  fs.rmSync(at('tree/empty/x/y'));
  fs.symlinkSync('e', at('tree/var/link'));
  await createTest(repo);
  await using repository = await openTest(repo);
  await backUp(repository, at('tree'));
});
let target = '';
let number = 0;
beforeEach(() => {
  target = at(`out-${number++}`);
});

describe('restore', () => {
  it.each([
    [
      ['--include', '*.conf'],
      ['etc/', 'etc/app/', 'etc/app/a.conf', 'etc/c.conf'],
    ],
    [
      ['--include', '/var/'],
      ['var/', 'var/deep/', 'var/deep/d.log', 'var/e', 'var/link'],
    ],
    [
      ['--include', '/var', '--exclude', '*.log'],
      ['var/', 'var/deep/', 'var/e', 'var/link'],
    ],
    [
      ['--include', 'app', '--include', 'e'],
      ['etc/', 'etc/app/', 'etc/app/a.conf', 'etc/app/b.log', 'var/', 'var/e'],
    ],
    [
      ['--include', 'x/'],
      ['empty/', 'empty/x/'],
    ],
    [
      ['--exclude', '/etc', '--exclude', 'empty/', '--exclude', 'deep'],
      ['var/', 'var/e', 'var/link'],
    ],
    [
      ['--exclude', '*.log', '--exclude', '!b.log', '--exclude', 'var', '--exclude', 'empty'],
      ['etc/', 'etc/app/', 'etc/app/a.conf', 'etc/app/b.log', 'etc/c.conf'],
    ],
  ])('%j restores just that, and a dry run says so', async (words, wanted) => {
    const planned = await run('restore', 'latest', target, ...words, '--dry-run');
    expect(fs.existsSync(target)).toBe(false);
    const lines = planned.out.trim().split('\n');
    expect(lines.pop()).toMatch(/^dry run: /);
    expect(
      lines
        .slice(1)
        .map((line) => line.replace(`restore ${target}/`, ''))
        .sort(),
    ).toEqual(wanted);
    expect(await run('restore', 'latest', target, ...words)).toMatchObject({ code: 0, err: '' });
    expect(below(target)).toEqual(wanted);
  });

  it('of a directory of a snapshot takes patterns from there on', async () => {
    expect((await run('restore', 'latest/etc', target, '--include', '/app')).code).toBe(0);
    expect(below(target)).toEqual(['app/', 'app/a.conf', 'app/b.log']);
  });

  it('of nothing fails and makes nothing', async () => {
    for (const more of [[], ['--dry-run']]) {
      expect(await run('restore', 'latest', target, '--include', 'nowhere', ...more)).toEqual({
        code: 1,
        out: '',
        err: 'longshore: nothing in the snapshot matches --include\n',
      });
    }
    expect(fs.existsSync(target)).toBe(false);
  });

  it.each([
    [['latest', '--include', '['], 'ignore pattern "[" is not valid'],
    [['latest/var/e', '--include', 'e'], 'this is a single file'],
    [['latest', '--block', '--exclude', 'e'], 'not for raw volumes'],
    [['latest', '--block', '--no-owner'], 'not for raw volumes'],
  ])('%j is wrong usage', async ([id = '', ...words], text) => {
    const { code, err } = await run('restore', id, target, ...words);
    expect([code, err]).toEqual([2, expect.stringContaining(text)]);
    expect(fs.existsSync(target)).toBe(false);
  });
});

describe('a dry run', () => {
  it('tells what is there already, by the rule of --overwrite', async () => {
    await run('restore', 'latest', target);
    fs.writeFileSync(join(target, 'var/e'), 'changed');
    const counts = async (...words: string[]): Promise<unknown> =>
      JSON.parse((await run('restore', 'latest', target, '--dry-run', '--json', ...words)).out);
    expect(await counts()).toMatchObject({ dryRun: true, files: 1, symlinks: 0, skipped: 5 });
    expect(await counts('--overwrite', 'never')).toMatchObject({ files: 0, skipped: 6 });
    expect(await counts('--overwrite', 'always')).toMatchObject({
      files: 5,
      symlinks: 1,
      skipped: 0,
    });
    expect(fs.readFileSync(join(target, 'var/e'), 'utf8')).toBe('changed');
  });
});

describe('a single file', () => {
  it('goes into a target that ends with a slash, whether it is there or not', async () => {
    for (const directory of [`${target}/new/`, `${target}/new/`]) {
      const planned = await run(
        'restore',
        'latest/var/e',
        directory,
        '--dry-run',
        '--overwrite',
        'always',
      );
      expect(planned.out).toContain(`restore ${target}/new/e\n`);
      expect((await run('restore', 'latest/var/e', directory)).code).toBe(0);
      expect(fs.readFileSync(join(target, 'new/e'), 'utf8')).toBe('var/e');
    }
  });

  it('has the name of the target otherwise', async () => {
    expect((await run('restore', 'latest/var/e', target)).code).toBe(0);
    expect(fs.readFileSync(target, 'utf8')).toBe('var/e');
  });
});

describe.runIf(process.geteuid?.() === 0)('owners', () => {
  it('are whose the restore is with --no-owner', async () => {
    fs.chownSync(at('tree/var/e'), 1234, 2345);
    fs.lchownSync(at('tree/var/link'), 1234, 2345);
    fs.chownSync(at('tree/var'), 1234, 2345);
    await using repository = await openTest(repo);
    const { rootEntry } = await backUp(repository, at('tree'));
    await restore(repository, rootEntry, at('owned'));
    expect(fs.statSync(at('owned/var/e'))).toMatchObject({ uid: 1234, gid: 2345 });
    expect((await run('restore', 'latest', target, '--no-owner')).code).toBe(0);
    for (const name of ['var', 'var/e', 'var/link']) {
      expect(fs.lstatSync(join(target, name)), name).toMatchObject({
        uid: 0,
        gid: process.getegid?.(),
      });
    }
  });
});
