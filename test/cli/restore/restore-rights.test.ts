import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { canMount } from '../../support/full-disk.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

/**
 * Restores by a process that may not do everything, and into targets that do not take everything.
 */
const work = tempDirectory('restore-rights');
const at = (...names: string[]): string => join(work, ...names);
const isRoot = process.getuid?.() === 0;
const env = { ...process.env, LONGSHORE_PASSWORD: PASSWORD, NO_COLOR: '1' };
let id: string;

beforeAll(async () => {
  fs.mkdirSync(at('tree/snapshots/daily'), { recursive: true });
  fs.mkdirSync(at('tree/closed/below'), { recursive: true });
  for (const path of ['snapshots/daily/f', 'closed/f', 'closed/below/f', 'a', 'z']) {
    fs.writeFileSync(at('tree', path), 'new');
  }
  for (const path of ['closed/below', 'closed']) fs.chmodSync(at('tree', path), 0o555);
  if (isRoot) fs.chownSync(at('tree/a'), 1001, 1002);
  await createTest(at('repo'));
  await using repository = await openTest(at('repo'));
  ({ id } = await backUp(repository, at('tree')));
});
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

/** `lacking`: rights of root that the process does not have. */
function restore(
  target: string,
  flags: readonly string[] = [],
  lacking?: string,
): { code: number | null; out: string; err: string } {
  const all = ['snapshot', 'restore', id, at(target), '--repo', at('repo'), ...flags];
  const set = isRoot && lacking ? ['setpriv', `--bounding-set=${lacking}`] : ['env'];
  const [command = '', ...given] = [...set, packagedProgram(), ...all];
  const { status, stdout, stderr } = spawnSync(command, given, { env, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

const FILES = ['a', 'z', 'closed/f', 'closed/below/f', 'snapshots/daily/f'];
const oldOnes = (target: string): string[] =>
  FILES.filter((path) => fs.readFileSync(at(target, path), 'utf8') !== 'new');

describe.skipIf(!canMount)('a part of the target that is read-only', () => {
  it.each([
    ['a directory', 'snapshots', 'snapshots/daily/f'],
    ['a directory below', 'closed/below', 'closed/below/f'],
    ['a file', 'a', 'a'],
  ])('%s: its entries fail, and all others are restored', (_what, path, file) => {
    const target = `read-only-${path.replaceAll('/', '-')}`;
    restore(target);
    for (const each of FILES) fs.writeFileSync(at(target, each), 'user');
    execFileSync('mount', ['--bind', at(target, path), at(target, path)]);
    try {
      execFileSync('mount', ['-o', 'remount,ro,bind', at(target, path)]);
      const { code, err } = restore(target);
      expect(code).toBe(1);
      expect(err).toContain(at(target, file));
    } finally {
      execFileSync('umount', [at(target, path)]);
    }
    expect(oldOnes(target)).toEqual([file]);
  });

  it('the whole target: the restore ends at once', () => {
    restore('all');
    for (const each of FILES) fs.writeFileSync(at('all', each), 'user');
    execFileSync('mount', ['--bind', at('all'), at('all')]);
    try {
      execFileSync('mount', ['-o', 'remount,ro,bind', at('all')]);
      const { code, err } = restore('all');
      expect(code).toBe(1);
      expect(err.match(/an entry could not be restored/g)).toHaveLength(1);
    } finally {
      execFileSync('umount', [at('all')]);
    }
  });
});

describe.skipIf(!isRoot)('owners that may not be set', () => {
  it('are told on stderr, with exit code 3', () => {
    const { code, err } = restore('owners', [], '-chown');
    expect(code).toBe(3);
    expect(err).toContain('1 entry restored without all attributes: the owner of 1');
    expect(err).toContain(at('owners/a'));
    expect(fs.readFileSync(at('owners/a'), 'utf8')).toBe('new');
    expect(restore('owners', ['--no-owner'], '-chown').code).toBe(0);
  });

  it('are in the JSON report', () => {
    const { code, out } = restore('owners-json', ['--json'], '-chown');
    expect(code).toBe(3);
    expect(JSON.parse(out)).toMatchObject({
      attributesNotSet: { entries: 1, owner: 1, mode: 0, time: 0 },
    });
  });

  it('and modes of a directory of another user are told, too', () => {
    fs.mkdirSync(at('others'));
    fs.chownSync(at('others'), 7, 7);
    fs.chmodSync(at('others'), 0o777);
    const { code, err } = restore('others', [], '-chown,-fowner');
    expect(code).toBe(3);
    expect(err).toContain('the mode of 1');
  });
});

describe('directories of its own that the user may not write to', () => {
  const lacking = '-dac_override,-dac_read_search';
  const modes = (target: string): number[] =>
    ['closed', 'closed/below'].map((path) => fs.statSync(at(target, path)).mode & 0o777);

  it.each([['--overwrite=always'], ['--overwrite=if-different'], ['--in-place']])(
    '%s changes what is in them, and gives their modes back',
    (flag) => {
      const target = `closed${flag}`;
      restore(target, ['--no-owner'], lacking);
      for (const path of FILES) {
        fs.chmodSync(at(target, path), 0o644);
        fs.writeFileSync(at(target, path), 'user');
      }
      fs.chmodSync(at(target, 'closed/below'), 0o111);
      const { code, err } = restore(target, ['--no-owner', flag], lacking);
      expect(err).not.toContain('could not be restored');
      expect(code).toBe(0);
      expect(oldOnes(target)).toEqual([]);
      expect(modes(target)).toEqual([0o555, 0o555]);
    },
  );
});
