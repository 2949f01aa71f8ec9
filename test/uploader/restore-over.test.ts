import fsFunctions, * as fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { posix } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import type { DirectoryEntry } from '../../src/snapshot/index.ts';
import { newRestoreCounters } from '../../src/uploader/index.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, recordingLogger, restore } from '../support/repositories.ts';

/** Restores into a directory that holds data. */
const work = tempDirectory('over');
const at = (...names: string[]): string => join(work, ...names);
const LEFT = '.longshore-restore-0123456789abcdef';
let repository: Repository;
let root: DirectoryEntry;

beforeAll(async () => {
  fs.mkdirSync(at('source/sub'), { recursive: true });
  fs.writeFileSync(at('source/small'), 'new');
  fs.writeFileSync(at('source/large'), noise('large', 12_000_000));
  fs.symlinkSync('new', at('source/link'));
  fs.writeFileSync(at('source/was-link'), 'new');
  fs.writeFileSync(at('source/sub/below'), 'new');
  fs.writeFileSync(at('source', 'n'.repeat(255)), 'new');
  await createTest(at('repo'));
  repository = await openTest(at('repo'));
  root = (await backUp(repository, at('source'))).rootEntry;
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

const NAMES = ['small', 'large', 'sub/below', 'n'.repeat(255)];

function oldTree(name: string): string {
  fs.mkdirSync(at(name, 'sub'), { recursive: true });
  for (const file of [...NAMES, 'link']) fs.writeFileSync(at(name, file), 'old');
  fs.symlinkSync('old', at(name, 'was-link'));
  return at(name);
}

function expectOld(target: string): void {
  for (const file of [...NAMES, 'link']) {
    expect(fs.readFileSync(join(target, file), 'utf8')).toBe('old');
  }
  expect(fs.readlinkSync(join(target, 'was-link'))).toBe('old');
}

describe('what is in the target stays until its replacement is whole', () => {
  it.each(['always', 'if-different', 'never'] as const)(
    'when all packs are missing (%s)',
    async (overwrite) => {
      await createTest(at(`lossy-${overwrite}`));
      const lossy = await openTest(at(`lossy-${overwrite}`));
      try {
        const { rootEntry } = await backUp(lossy, at('source'));
        const packs = fs
          .readdirSync(at(`lossy-${overwrite}`), { recursive: true, encoding: 'utf8' })
          .filter((name) => /(^|\/)p/.test(name))
          .filter((name) => fs.statSync(at(`lossy-${overwrite}`, name)).isFile());
        expect(packs.length).toBeGreaterThan(0);
        for (const pack of packs) fs.rmSync(at(`lossy-${overwrite}`, pack));
        const target = oldTree(`lossy-out-${overwrite}`);
        const run = restore(lossy, rootEntry, target, { overwrite });
        // The target of the link is read before the existing link is checked.
        if (overwrite === 'never') await run.catch(() => undefined);
        else await expect(run).rejects.toMatchObject({ code: 'DAMAGED_BLOB' });
        expectOld(target);
        expect(fs.readdirSync(target).filter((name) => name.startsWith('.'))).toEqual([]);
      } finally {
        await lossy.close();
      }
    },
  );

  it('and is replaced then, whatever it was', async () => {
    for (const overwrite of ['always', 'if-different'] as const) {
      const target = oldTree(`whole-${overwrite}`);
      await restore(repository, root, target, { overwrite });
      assertSameTree(at('source'), target);
    }
    const target = oldTree('kept');
    await restore(repository, root, target, { overwrite: 'never' });
    expectOld(target);
  });
});

describe('what an earlier restore was making when it was killed', () => {
  const leave = (target: string): void => {
    fs.mkdirSync(join(target, 'sub'), { recursive: true });
    for (const path of [LEFT, `sub/${LEFT}`]) fs.writeFileSync(join(target, path), 'half');
    for (const path of ['.longshore-restore-mine', `sub/${LEFT}0`]) {
      fs.writeFileSync(join(target, path), 'of the user');
    }
  };
  const expectMine = (target: string): void => {
    for (const path of ['.longshore-restore-mine', `sub/${LEFT}0`]) {
      expect(fs.readFileSync(join(target, path), 'utf8')).toBe('of the user');
    }
  };

  it('is removed by the next one, and no file of the user is', async () => {
    leave(at('left'));
    await restore(repository, root, at('left'));
    expect(fs.existsSync(at('left', LEFT))).toBe(false);
    expect(fs.existsSync(at('left/sub', LEFT))).toBe(false);
    expectMine(at('left'));
  });

  it('is removed by the next one of a single file, too', async () => {
    leave(at('left-single'));
    const file = { ...root, name: 'small', type: 'f' as const };
    const { resolveEntry } = await import('../../src/snapshot/index.ts');
    const found = await resolveEntry(repository, `${root.objectId}/small`);
    await restore(repository, { ...file, ...found }, at('left-single'));
    expect(fs.existsSync(at('left-single', LEFT))).toBe(false);
    expect(fs.readFileSync(at('left-single/small'), 'utf8')).toBe('new');
    expectMine(at('left-single'));
  });

  it('stays while another restore into the same directory runs', async () => {
    leave(at('left-shared'));
    const other = fs.openSync(at('left-shared'), 'r');
    expect(posix().tryLock(other, 'shared')).toBe(true);
    await restore(repository, root, at('left-shared'));
    fs.closeSync(other);
    expect(fs.existsSync(at('left-shared', LEFT))).toBe(true);
  });
});

describe('attributes that the system refuses', () => {
  const refused = async (
    calls: Partial<Record<'fchownSync' | 'fchmodSync' | 'chownSync' | 'chmodSync', string>>,
    task: () => Promise<unknown>,
  ): Promise<void> => {
    const functions = fsFunctions as unknown as Record<string, unknown>;
    const before = Object.keys(calls).map((name) => [name, functions[name]] as const);
    for (const [name, code] of Object.entries(calls)) {
      functions[name] = () => {
        throw Object.assign(new Error(`${code}: refused`), { code, syscall: name });
      };
    }
    syncBuiltinESMExports();
    try {
      await task();
    } finally {
      for (const [name, original] of before) functions[name] = original;
      syncBuiltinESMExports();
    }
  };

  it.each(['EPERM', 'EACCES', 'EINVAL', 'EOVERFLOW', 'ENOSYS', 'EOPNOTSUPP'])(
    'are counted and named, and the restore goes on (%s)',
    async (code) => {
      const [counters, logger] = [newRestoreCounters(), recordingLogger()];
      // Files that have their owner already need no call.
      const owner = { uid: 4321, gid: 4321 };
      await refused({ fchownSync: code, chownSync: code, chmodSync: code }, () =>
        restore(repository, root, at(`refused-${code}`), { counters, logger, owner }),
      );
      const { attributesNotSet: noted } = counters;
      // Four small files, a large one, a link, and two directories. The small files have their
      // modes.
      expect(noted).toMatchObject({ entries: 8, owner: 8, mode: 3, time: 0 });
      expect(noted.first.map(({ path }) => path)).toContain(at(`refused-${code}`, 'small'));
      expect(logger.messages).toContain('attributes of an entry could not be set');
      expect(counters.errors).toBe(0);
      expect(fs.readFileSync(at(`refused-${code}/small`), 'utf8')).toBe('new');
    },
  );

  it('name ten entries, and count the others', async () => {
    fs.mkdirSync(at('many'));
    for (let i = 0; i < 30; i++) fs.writeFileSync(at('many', `f${i}`), String(i));
    const { rootEntry } = await backUp(repository, at('many'));
    const counters = newRestoreCounters();
    await refused({ fchownSync: 'EPERM' }, () =>
      restore(repository, rootEntry, at('many-out'), { counters }),
    );
    expect(counters.attributesNotSet).toMatchObject({ entries: 30, owner: 30 });
    expect(counters.attributesNotSet.first).toHaveLength(10);
  });
});
