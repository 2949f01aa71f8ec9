import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import {
  hasDoneMark,
  isMarkName,
  removeMarks,
  writeDoneMark,
} from '../../src/mover/restore-done-file.ts';

const UID = '0b5c0b3e-6f0e-4a52-9c1f-3b6d1d5a7e11';
const never = new AbortController().signal;

describe('the done mark of a restored volume', () => {
  let work: string;
  let volume: string;
  let outside: string;
  beforeEach(() => {
    work = fs.mkdtempSync(join(tmpdir(), 'longshore-mark-'));
    volume = join(work, 'volume');
    outside = join(work, 'outside');
    fs.mkdirSync(volume);
    fs.mkdirSync(join(outside, 'deeper'), { recursive: true });
    fs.writeFileSync(join(outside, 'kept'), 'kept');
    fs.writeFileSync(join(outside, 'deeper/kept'), 'kept');
  });
  afterEach(() => {
    fs.rmSync(work, { recursive: true, force: true });
  });

  const write = (signal = never): Promise<void> =>
    writeDoneMark({
      volume,
      name: UID,
      // Without a data path nobody sets the attributes of the root.
      root: { type: 'd' } as never,
      repository: {} as never,
      signal,
    });
  const outsideIsKept = (): void => {
    expect(fs.readFileSync(join(outside, 'kept'), 'utf8')).toBe('kept');
    expect(fs.readFileSync(join(outside, 'deeper/kept'), 'utf8')).toBe('kept');
  };

  it('is an empty file that everybody may see, whatever the umask', async () => {
    const umask = process.umask(0o077);
    try {
      await write();
    } finally {
      process.umask(umask);
    }
    expect(fs.readdirSync(join(volume, '.velero'))).toEqual([UID]);
    const [directory, file] = [join(volume, '.velero'), join(volume, '.velero', UID)].map((path) =>
      fs.lstatSync(path),
    );
    expect((directory?.mode ?? 0) & 0o7777).toBe(0o755);
    expect((file?.mode ?? 0) & 0o7777).toBe(0o644);
    expect(file?.size).toBe(0);
    expect(await hasDoneMark(volume, UID)).toBe(true);
    expect(await hasDoneMark(volume, 'another')).toBe(false);
  });

  it('takes the place of marks of other restores, and of everything beside them', async () => {
    const old = join(volume, '.velero');
    fs.mkdirSync(join(old, 'tree/of/many/directories'), { recursive: true });
    fs.writeFileSync(join(old, 'tree/of/many/file'), 'x');
    fs.writeFileSync(join(old, 'old-uid'), '');
    fs.writeFileSync(Buffer.concat([Buffer.from(`${old}/tree/`), Buffer.from([0xff, 0xfe])]), '');
    fs.mkdirSync(Buffer.concat([Buffer.from(`${old}/`), Buffer.from([0xc3, 0x28])]));
    fs.mkdirSync(join(old, UID));
    fs.chmodSync(join(old, 'tree'), 0o500);
    await write();
    expect(fs.readdirSync(old)).toEqual([UID]);
    expect(fs.lstatSync(join(old, UID)).isFile()).toBe(true);
  });

  it('is written where a link to somewhere else was planted, and that place is left alone', async () => {
    fs.symlinkSync(outside, join(volume, '.velero'));
    expect(await hasDoneMark(volume, 'kept')).toBe(false);
    await write();
    expect(fs.lstatSync(join(volume, '.velero')).isDirectory()).toBe(true);
    outsideIsKept();
    expect(fs.readdirSync(outside).sort()).toEqual(['deeper', 'kept']);
  });

  it('removes links inside, and nothing that they lead to', async () => {
    const old = join(volume, '.velero');
    fs.mkdirSync(join(old, 'sub'), { recursive: true });
    fs.symlinkSync(outside, join(old, UID));
    fs.symlinkSync(join(outside, 'deeper'), join(old, 'sub/link'));
    fs.symlinkSync(join(outside, 'kept'), join(old, 'file'));
    expect(await hasDoneMark(volume, UID)).toBe(false);
    await removeMarks(volume, never);
    expect(fs.readdirSync(volume)).toEqual([]);
    outsideIsKept();
  });

  it('removes a file that has the name of the directory', async () => {
    fs.writeFileSync(join(volume, '.velero'), 'x');
    await removeMarks(volume, never);
    expect(fs.readdirSync(volume)).toEqual([]);
    await removeMarks(volume, never);
  });

  it('removes a tree that is deeper than a process may have files open, and wide', async () => {
    let at = join(volume, '.velero');
    fs.mkdirSync(at);
    for (let i = 0; i < 2500; i++) fs.writeFileSync(join(at, `mark-${i}`), '');
    const cwd = process.cwd();
    try {
      process.chdir(at);
      for (let i = 0; i < 3000; i++) {
        fs.mkdirSync('d');
        process.chdir('d');
      }
    } finally {
      process.chdir(cwd);
    }
    at = volume;
    await removeMarks(volume, never);
    expect(fs.readdirSync(at)).toEqual([]);
  });

  it('that cannot be written is an error that says what the pod waits for', async () => {
    fs.rmSync(volume, { recursive: true });
    fs.writeFileSync(volume, 'no directory');
    await expect(write()).rejects.toMatchObject({
      code: 'NO_DONE_MARK',
      message: expect.stringMatching(
        new RegExp(`^all data were restored, but the file .velero/${UID} that the pod waits for`),
      ) as string,
    });
  });

  it('is not written once the restore is canceled', async () => {
    const abort = new AbortController();
    abort.abort(new Error('enough'));
    await expect(write(abort.signal)).rejects.toThrow('enough');
    expect(await hasDoneMark(volume, UID)).toBe(false);
  });

  it.each([
    [UID, true],
    ['..', false],
    ['.', false],
    ['', false],
    ['a/b', false],
    ['../../etc', false],
    ['a\0b', false],
    ['x'.repeat(200), false],
  ])('%j as its name: %s', (name, isRight) => {
    expect(isMarkName(name)).toBe(isRight);
  });
});
