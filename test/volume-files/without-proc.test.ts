import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it, vi } from 'vitest';
import { hasMoreNames } from '../../src/uploader/long-directory/long-listing.ts';
import { readDirectory } from '../../src/volume-files/index.ts';

vi.mock('node:fs', async (original) => {
  const real = await original<typeof fs>();
  const isOfProc = (path: unknown): boolean => String(path).startsWith('/proc/');
  const refuse = (path: unknown): void => {
    if (isOfProc(path))
      throw Object.assign(new Error(`ENOENT: ${String(path)}`), { code: 'ENOENT' });
  };
  return {
    ...real,
    existsSync: (path: fs.PathLike) => !isOfProc(path) && real.existsSync(path),
    readdirSync: (path: fs.PathLike, options: never) => (
      refuse(path),
      real.readdirSync(path, options)
    ),
    lstatSync: (path: fs.PathLike, options: never) => (refuse(path), real.lstatSync(path, options)),
    readlinkSync: (path: fs.PathLike, options: never) => (
      refuse(path),
      real.readlinkSync(path, options)
    ),
  };
});

const work = fs.realpathSync(fs.mkdtempSync(join(tmpdir(), 'longshore-no-proc-')));
afterAll(() => {
  fs.rmSync(work, { recursive: true });
});

it('directories are read where nothing is mounted on /proc, as in a bare chroot', async () => {
  fs.writeFileSync(join(work, 'file'), 'content');
  fs.symlinkSync('file', join(work, 'link'));
  const { names, targets, failures } = readDirectory(work, 10);
  expect([names.toSorted(), targets.length, failures]).toEqual([['file', 'link'], 1, []]);
  expect(await hasMoreNames(work, 1)).toBe(true);
});
