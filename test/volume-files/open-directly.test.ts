import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { posix } from '../../src/base/index.ts';
import { checkDirectory } from '../../src/snapshot/directory/directory-check.ts';
import { hasMoreNames } from '../../src/uploader/long-directory/long-listing.ts';
import { openRegular } from '../../src/uploader/file-data/regular-file.ts';
import {
  lookAtNames,
  openDirectly,
  readDirectory,
  readFileInto,
} from '../../src/volume-files/index.ts';

const { O_RDONLY, O_DIRECTORY } = fs.constants;

/** A link replaces a directory after its parent was listed. */
const work = fs.realpathSync(fs.mkdtempSync(join(tmpdir(), 'longshore-links-')));
const outside = join(work, 'outside');
const volume = join(work, 'volume');
fs.mkdirSync(join(outside, 'below'), { recursive: true });
fs.writeFileSync(join(outside, 'token'), 'secret');
fs.mkdirSync(join(volume, 'real'), { recursive: true });
fs.writeFileSync(join(volume, 'real/file'), 'content');
fs.symlinkSync(outside, join(volume, 'swapped'));
const swapped = join(volume, 'swapped');
const below = join(swapped, 'below');
afterAll(() => {
  fs.rmSync(work, { recursive: true });
});

const codeOf = (task: () => unknown): string | undefined => {
  try {
    task();
    return undefined;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code;
  }
};

describe.each(['by openat2', 'by the stand-in'])('no link leads out of a volume, %s', (how) => {
  beforeEach(() => {
    if (how === 'by openat2') expect(posix().openWithoutLinks).toBeDefined();
    else vi.spyOn(posix(), 'openWithoutLinks', 'get').mockReturnValue(undefined);
  });
  afterEach(() => {
    vi.restoreAllMocks();
  });

  it('directories are not read, nor what is in them', () => {
    expect(codeOf(() => readDirectory(below, 10))).toBe('ELOOP');
    expect(codeOf(() => lookAtNames(below, Buffer.from('.\0')))).toBe('ELOOP');
    const stream = Buffer.from('{"stream":"kopia:directory","entries":[],"summary":{}}\n');
    const checked = { path: below, stream, hashBytes: 16, special: [], entriesMax: 10 };
    const reader = posix().statusReader;
    if (reader) expect(checkDirectory(checked, reader)).toBe('unknown');
  });

  it('small files are not read', () => {
    const room = Buffer.alloc(20);
    const read = readFileInto({ path: join(swapped, 'token'), sizeBytes: 6 }, room);
    expect(read).toMatchObject({ length: 0, error: { code: 'ELOOP' } });
    expect(room.every((byte) => byte === 0)).toBe(true);
  });

  it('what is where it should be is read, by names of bytes too', () => {
    expect(readDirectory(join(volume, 'real'), 10).names).toEqual(['file']);
    const path = Buffer.concat([Buffer.from(`${volume}/`), Buffer.of(0xff, 0xfe)]);
    fs.writeFileSync(path, 'bytes');
    expect(readFileInto({ path, sizeBytes: 5 }, Buffer.alloc(6)).length).toBe(5);
    expect(codeOf(() => openDirectly(join(volume, 'none'), O_RDONLY))).toBe('ENOENT');
    const file = join(volume, 'real/file');
    expect(codeOf(() => openDirectly(file, O_RDONLY | O_DIRECTORY))).toBe('ENOTDIR');
  });
});

describe('no link leads out of a volume, where the main thread reads', () => {
  it('large files are not read', async () => {
    expect(await openRegular(join(swapped, 'token'))).toBeUndefined();
    const file = await openRegular(join(volume, 'real/file'));
    expect(file).toBeDefined();
    await file?.close();
  });

  it('long directories are not listed', async () => {
    await expect(hasMoreNames(swapped, 0)).rejects.toThrow(/ENOTDIR|ELOOP/);
    // Only the last part of this path is a real directory; a part before it is a link.
    await expect(hasMoreNames(below, 0)).rejects.toMatchObject({ code: 'ELOOP' });
    expect(await hasMoreNames(join(volume, 'real'), 0)).toBe(true);
  });
});
