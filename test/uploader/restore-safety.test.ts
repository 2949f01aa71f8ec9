import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import type { ThreadPool } from '../../src/volume-files/index.ts';
import { type ObjectId, type Repository, writeObject } from '../../src/repository/index.ts';
import { type DirectoryEntry, encodeDirectory } from '../../src/snapshot/index.ts';
import { newRestoreCounters } from '../../src/uploader/index.ts';
import { RestoreReport } from '../../src/uploader/restore/restore-report.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, recordingLogger, restore } from '../support/repositories.ts';

const work = tempDirectory('safety');
const at = (name: string): string => join(work, name);
let repository: Repository;
beforeAll(async () => {
  await createTest(at('repo'));
  repository = await openTest(at('repo'));
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

const MTIME_NS = 1_700_000_000_000_000_000n;
const common = { mode: 0o755, size: 0, mtimeNs: MTIME_NS, uid: 0, gid: 0 };

async function put(data: Uint8Array, prefix: '' | 'k'): Promise<ObjectId> {
  const { splitter } = repository;
  const none = { compressor: undefined, metadataCompressor: undefined };
  return writeObject(repository.contents, [data], {
    prefix,
    ...none,
    splitter,
    indexSplitter: splitter,
  });
}

async function file(name: string, text: string): Promise<DirectoryEntry> {
  return {
    ...common,
    name,
    type: 'f',
    size: text.length,
    objectId: await put(Buffer.from(text), ''),
  };
}

async function link(name: string, target: string): Promise<DirectoryEntry> {
  return {
    ...common,
    name,
    type: 's',
    size: target.length,
    objectId: await put(Buffer.from(target), ''),
  };
}

async function directory(name: string, entries: DirectoryEntry[]): Promise<DirectoryEntry> {
  const summary = { size: 0, files: 0, symlinks: 0, dirs: 1, maxTimeNs: MTIME_NS, numFailed: 0 };
  const objectId = await put(encodeDirectory(entries, summary), 'k');
  await repository.flush();
  return { ...common, name, type: 'd', objectId, summary };
}

describe('whatever a snapshot holds, nothing outside of the target is touched', () => {
  it.each(['../evil', '..', '.', '', 'a/b', '/etc/evil', 'nul\0byte'])(
    'the name %j',
    async (name) => {
      const target = at(`names-${Buffer.from(name).toString('hex')}`);
      const root = await directory('root', [await file(name, 'evil'), await file('good', 'good')]);
      await expect(restore(repository, root, target)).rejects.toMatchObject({
        code: 'RESTORE_INCOMPLETE',
        message: expect.stringContaining('unsafe name') as string,
      });
      expect(fs.readdirSync(target)).toEqual(['good']);
      expect(fs.existsSync(at('evil'))).toBe(false);
    },
  );

  it.each(['../stolen/evil', '..', '/etc/evil'])(
    'the name %j of a single file, into a directory',
    async (name) => {
      fs.mkdirSync(at('into'), { recursive: true });
      fs.mkdirSync(at('stolen'), { recursive: true });
      const root = await file(name, 'evil');
      await expect(restore(repository, root, at('into'))).rejects.toMatchObject({
        code: 'UNSAFE_NAME',
      });
      expect([...fs.readdirSync(at('into')), ...fs.readdirSync(at('stolen'))]).toEqual([]);
      await restore(repository, root, at('into/named'));
      expect(fs.readFileSync(at('into/named'), 'utf8'), 'under another name').toBe('evil');
      fs.rmSync(at('into/named'));
    },
  );

  it('what is no file at the named target of a single file, which is a link perhaps', async () => {
    const root = await file('single', 'text');
    await repository.flush();
    const { execFileSync } = await import('node:child_process');
    execFileSync('mkfifo', [at('pipe')]);
    fs.symlinkSync(at('pipe'), at('to-pipe'));
    for (const target of ['pipe', 'to-pipe']) {
      for (const overwrite of ['always', 'if-different'] as const) {
        await expect(restore(repository, root, at(target), { overwrite })).rejects.toMatchObject({
          code: 'TARGET_UNUSABLE',
          message: expect.stringContaining('it is a device, pipe or socket') as string,
        });
      }
    }
    expect(fs.lstatSync(at('pipe')).isFIFO()).toBe(true);
    expect(fs.readlinkSync(at('to-pipe'))).toBe(at('pipe'));
    fs.writeFileSync(at('plain'), 'before');
    fs.symlinkSync(at('plain'), at('to-plain'));
    await restore(repository, root, at('to-plain'));
    expect(fs.readFileSync(at('plain'), 'utf8'), 'the file behind a link').toBe('text');
    expect(fs.readlinkSync(at('to-plain'))).toBe(at('plain'));
  });

  it('a file that is named twice, once where both are the same', async () => {
    const other = await file('other', 'other');
    const again = [await file('again', 'text'), await file('again', 'text')];
    const same = await directory('root', [...again, other]);
    expect(await restore(repository, same, at('again'))).toMatchObject({ files: 2 });
    expect(fs.readFileSync(at('again/again'), 'utf8')).toBe('text');
    const different = await directory('root', [...again, await file('again', 'lost'), other]);
    await expect(restore(repository, different, at('lost'))).rejects.toMatchObject({
      code: 'RESTORE_INCOMPLETE',
    });
  });

  it('a link and a directory of the same name', async () => {
    fs.mkdirSync(at('outside'));
    const inner = await directory('x', [await file('stolen', 'evil')]);
    const root = await directory('root', [await link('x', at('outside')), inner]);
    await expect(restore(repository, root, at('twins'))).rejects.toMatchObject({
      code: 'RESTORE_INCOMPLETE',
    });
    expect(fs.readdirSync(at('outside'))).toEqual([]);
  });

  it('links that are in the target already are replaced or refused, never followed', async () => {
    fs.mkdirSync(at('elsewhere'));
    fs.writeFileSync(at('elsewhere/file'), 'mine');
    fs.mkdirSync(at('linked'));
    fs.symlinkSync(at('elsewhere/file'), at('linked/file'));
    fs.symlinkSync(at('elsewhere'), at('linked/dir'));
    const root = await directory('root', [
      await directory('dir', [await file('inner', 'evil')]),
      await file('file', 'restored'),
    ]);
    await expect(restore(repository, root, at('linked'))).rejects.toMatchObject({
      message: expect.stringContaining('in the way of a directory') as string,
    });
    expect(fs.readdirSync(at('elsewhere'))).toEqual(['file']);
    expect(fs.readFileSync(at('elsewhere/file'), 'utf8')).toBe('mine');
    expect(fs.lstatSync(at('linked/file')).isFile()).toBe(true);
  });
});

describe('what is in the target', () => {
  it('stays with "never", is replaced with "always", and is kept when it is the same', async () => {
    const root = await directory('root', [await file('a', 'from the snapshot')]);
    const target = at('overwrite');
    fs.mkdirSync(target);
    fs.writeFileSync(join(target, 'a'), 'mine');
    expect(await restore(repository, root, target, { overwrite: 'never' })).toMatchObject({
      skipped: 1,
    });
    expect(fs.readFileSync(join(target, 'a'), 'utf8')).toBe('mine');
    expect(await restore(repository, root, target)).toMatchObject({ files: 1 });
    expect(await restore(repository, root, target)).toMatchObject({ files: 0, skipped: 1 });
    expect(await restore(repository, root, target, { overwrite: 'always' })).toMatchObject({
      files: 1,
    });
    expect(fs.readFileSync(join(target, 'a'), 'utf8')).toBe('from the snapshot');
  });

  it('a directory where a file should be is an error of that file alone', async () => {
    const root = await directory('root', [await file('a', 'x'), await file('b', 'y')]);
    fs.mkdirSync(at('occupied/a'), { recursive: true });
    await expect(restore(repository, root, at('occupied'))).rejects.toMatchObject({
      message: expect.stringContaining('a directory is in the way') as string,
    });
    expect(fs.readFileSync(at('occupied/b'), 'utf8')).toBe('y');
  });

  it('a target that cannot be made is one clear sentence', async () => {
    fs.writeFileSync(at('plain-file'), '');
    const root = await directory('root', []);
    await expect(restore(repository, root, at('plain-file/below'))).rejects.toMatchObject({
      code: 'TARGET_UNUSABLE',
      message: expect.stringContaining(`cannot restore to ${at('plain-file/below')}`) as string,
    });
  });
});

describe('a disk that does not take what was written', () => {
  async function restoreFlushing(flush: () => Promise<boolean>, target: string): Promise<unknown> {
    const root = await directory('root', [await file('a', 'x')]);
    const { pool } = repository.dataPath as { pool: ThreadPool };
    const spy = vi.spyOn(pool, 'syncFilesystem').mockImplementation(flush);
    try {
      return await restore(repository, root, at(target));
    } finally {
      spy.mockRestore();
    }
  }

  it.each([
    ['EIO', 'RESTORE_INCOMPLETE'],
    ['ENOSPC', 'TARGET_FULL'],
    // A full quota, as Node tells it.
    ['Unknown system error -122', 'TARGET_FULL'],
  ])('fails the restore at its end (%s)', async (code, expected) => {
    const error = Object.assign(new Error(`${code}: syncfs failed`), { code, syscall: 'syncfs' });
    await expect(
      restoreFlushing(() => Promise.reject(error), `unflushed-${code}`),
    ).rejects.toMatchObject({
      code: expected,
      message: expect.stringContaining('--overwrite always') as string,
    });
  });

  it('is only warned of where it cannot be asked', async () => {
    await expect(restoreFlushing(() => Promise.resolve(false), 'unasked')).resolves.toMatchObject({
      files: 1,
      errors: 0,
    });
  });
});

it.skipIf(process.getuid?.() !== 0)(
  'a full disk ends a restore soon, and what is left is not tried',
  async () => {
    const { execFileSync } = await import('node:child_process');
    const [source, small] = [at('many-source'), at('small-many')];
    for (const path of [source, small]) fs.mkdirSync(path);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', small]);
    try {
      for (let i = 0; i < 40; i++) {
        fs.mkdirSync(join(source, `d${i}`));
        for (let k = 0; k < 100; k++) {
          fs.writeFileSync(join(source, `d${i}/f${k}`), noise(`many-${i}-${k}`, 4000));
        }
      }
      const { rootEntry } = await backUp(repository, source);
      const counters = newRestoreCounters();
      const logger = recordingLogger();
      await expect(
        restore(repository, rootEntry, join(small, 'out'), { counters, logger }),
      ).rejects.toMatchObject({
        code: 'TARGET_FULL',
        message: expect.stringMatching(/^cannot restore .*: ENOSPC/) as string,
      });
      expect(counters.filesFound).toBeLessThan(3000);
      expect(counters.errors).toBe(1);
      expect(logger.messages).toEqual(['an entry could not be restored']);
    } finally {
      execFileSync('umount', [small]);
    }
  },
);

it('names a thousand entries that could not be restored, and counts the others', () => {
  const logger = recordingLogger();
  const report = new RestoreReport({ logger, signal: new AbortController().signal });
  for (let i = 0; i < 1500; i++) {
    report.fail(`f${i}`, Object.assign(new Error('EIO: i/o error'), { code: 'EIO' }));
  }
  expect(report.signal.aborted).toBe(false);
  expect(logger.messages).toHaveLength(1001);
  expect(() => {
    report.throwIfFailed();
  }).toThrow('cannot restore f0: EIO: i/o error (and 1499 more failed)');
});

it.skipIf(process.getuid?.() !== 0)(
  'a full disk ends a restore and a backup with its name, and leaves no half file',
  async () => {
    const { execFileSync } = await import('node:child_process');
    fs.mkdirSync(at('small'));
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', at('small')]);
    try {
      fs.mkdirSync(at('big-source'));
      for (let i = 0; i < 6; i++)
        fs.writeFileSync(at(`big-source/f${i}`), noise(`full-${i}`, 3_000_000));
      const { rootEntry } = await backUp(repository, at('big-source'));
      await expect(restore(repository, rootEntry, at('small/out'))).rejects.toMatchObject({
        code: 'TARGET_FULL',
      });
      for (const name of fs.readdirSync(at('small/out'))) {
        const restored = fs.readFileSync(at(`small/out/${name}`));
        expect(restored.equals(fs.readFileSync(at(`big-source/${name}`)))).toBe(true);
      }
      fs.rmSync(at('small/out'), { recursive: true });
      await createTest(at('small/repo'));
      await using full = await openTest(at('small/repo'));
      await expect(backUp(full, at('big-source'))).rejects.toMatchObject({
        code: 'STORAGE_FULL',
        message: expect.stringContaining('no space left in the storage for blob') as string,
      });
      await using again = await openTest(at('small/repo'));
      expect([...again.contents.entries()].length).toBeGreaterThan(0);
    } finally {
      execFileSync('umount', [at('small')]);
    }
  },
);
