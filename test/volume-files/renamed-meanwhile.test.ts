import * as fs from 'node:fs';
import type * as FsPromises from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it, vi } from 'vitest';
import { hasMoreNames } from '../../src/uploader/long-directory/long-listing.ts';
import { openRegular } from '../../src/uploader/file-data/regular-file.ts';
import { isAt, linkError, lookAtNames, OPENS_MAX } from '../../src/volume-files/index.ts';

/** What happens on the volume just after something was opened. */
const faults = vi.hoisted(() => ({ opened: (): void => undefined }));
vi.mock(import('node:fs/promises'), async (importOriginal) => {
  const original: typeof FsPromises = await importOriginal();
  const open: typeof FsPromises.open = async (...args) => {
    const file = await original.open(...args);
    faults.opened();
    return file;
  };
  return { ...original, open };
});

const work = fs.realpathSync(fs.mkdtempSync(join(tmpdir(), 'longshore-renamed-')));
afterAll(() => {
  fs.rmSync(work, { recursive: true });
});
afterEach(() => {
  vi.restoreAllMocks();
  faults.opened = () => undefined;
});

/**
 * Renames it so many times, each time just after it was opened; `make` puts another in its place.
 */
function rotate(path: string, times: number, make?: () => void): { opens: () => number } {
  let opens = 0;
  faults.opened = () => {
    if (++opens > times) return;
    fs.renameSync(path, `${path}.${times}.${opens}`);
    make?.();
  };
  return { opens: () => opens };
}

describe('renamed between its opening and the look at where it lies', () => {
  it('a file is opened again, and read where it lies', async () => {
    const log = join(work, 'log');
    const write = (): void => fs.writeFileSync(log, 'new');
    write();
    const { opens } = rotate(log, 3, write);
    await using file = await openRegular(log);
    expect(opens()).toBe(4);
    expect(file && isAt(file.fd, log)).toBe(true);
  });

  it('a file whose place stays empty is gone, not of another kind', async () => {
    const log = join(work, 'moved');
    fs.writeFileSync(log, 'old');
    rotate(log, 1);
    await expect(openRegular(log)).rejects.toMatchObject({ code: 'ENOENT' });
  });

  it('what differs each time is left', async () => {
    const log = join(work, 'busy');
    const write = (): void => fs.writeFileSync(log, 'new');
    write();
    const { opens } = rotate(log, Infinity, write);
    expect(await openRegular(log)).toBeUndefined();
    expect(opens()).toBe(OPENS_MAX);
  });

  it('a directory is opened again', async () => {
    const path = join(work, 'directory');
    const make = (): void => {
      fs.mkdirSync(path);
      fs.writeFileSync(join(path, 'name'), '');
    };
    make();
    rotate(path, 3, make);
    expect(await hasMoreNames(path, 0)).toBe(true);
    rotate(path, 1);
    await expect(hasMoreNames(path, 0)).rejects.toMatchObject({ code: 'ENOENT' });
  });
});

describe('paths in messages', () => {
  it('of bytes are shown as text, and nothing in them is a pattern', () => {
    const path = join(work, "$&-$'");
    fs.mkdirSync(path);
    for (const each of [path, Buffer.from(path), Uint8Array.from(Buffer.from(path))]) {
      const { failures } = lookAtNames(each, Buffer.from('none\0'));
      expect(failures).toEqual([[0, 'ENOENT', expect.stringContaining(`'${path}/none'`)]]);
      expect(linkError(each).message).toContain(`'${path}'`);
    }
  });
});
