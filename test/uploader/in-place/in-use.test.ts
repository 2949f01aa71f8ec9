import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { findOpenFiles, type OpenFiles } from '../../../src/uploader/in-place/open-files.ts';
import { parseMounts, placeOf } from '../../../src/uploader/restore/mounts.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { whileRunning } from '../../support/running.ts';

const work = tempDirectory('in-use');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (...names: string[]): string => join(work, ...names);
const { signal } = new AbortController();

describe('a directory is in use by a process', () => {
  const target = at('target');
  fs.mkdirSync(join(target, 'below'), { recursive: true });
  fs.mkdirSync(at('target-2'));
  const usesOf = (script: string): Promise<string[]> =>
    whileRunning(script, async ({ pid }) => {
      const { uses } = await findOpenFiles({ path: target }, { signal });
      return uses.map(
        ({ who, path }) => `${who.replace(String(pid), 'PID')} ${path.slice(work.length)}`,
      );
    });

  it.each([
    ['that has a file open', `exec 3>'${target}/below/file'`, '/target/below/file'],
    ['that has a removed file open', `exec 3>'${target}/x'; rm '${target}/x'`, '/target/x'],
    ['that stands in it', `cd '${target}/below'`, '/target/below'],
    ['with a line break in the name', `exec 3>'${target}/a\nb'`, '/target/a\nb'],
  ])('%s', async (_, script, path) => {
    expect(await usesOf(script)).toEqual([`process PID (sh) ${path}`]);
  });

  it('and not by one that has only a neighbour open', async () => {
    expect(await usesOf(`exec 3>'${at('target-2/file')}'`)).toEqual([]);
  });
});

/** A `/proc` with one process in a container, which has the volume elsewhere. */
function fakeProc(name: string, files: Record<string, string>): { proc: string; sys: string } {
  const proc = at(name, 'proc');
  const put = (path: string, text: string): void => {
    fs.mkdirSync(join(proc, path, '..'), { recursive: true });
    fs.writeFileSync(join(proc, path), text);
  };
  put(
    'self/mountinfo',
    '30 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 30 8:16 / /pods/a/mount rw - xfs /dev/sdb rw\n',
  );
  fs.mkdirSync(join(proc, 'self/ns'), { recursive: true });
  fs.symlinkSync('pid:[4026531836]', join(proc, 'self/ns/pid'));
  put(
    '77/mountinfo',
    '90 1 0:50 / / rw - overlay overlay rw\n91 90 8:16 /sub /data rw - xfs /dev/sdb rw\n',
  );
  put('77/comm', 'postgres\n');
  fs.mkdirSync(join(proc, '77/ns'));
  fs.symlinkSync('mnt:[1]', join(proc, '77/ns/mnt'));
  fs.mkdirSync(join(proc, '77/fd'));
  Object.entries(files).forEach(([path, link]) => {
    fs.symlinkSync(link, join(proc, path));
  });
  return { proc, sys: at(name, 'sys') };
}

const look = (path: string, fake: { proc: string; sys: string }): Promise<OpenFiles> =>
  findOpenFiles({ path }, { signal, ...fake });

describe('a volume in a container', () => {
  it('is found by its file system, whatever it is called there', async () => {
    const fake = fakeProc('found', { '77/fd/3': '/data/base/1 (deleted)' });
    expect((await look('/pods/a/mount', fake)).uses).toEqual([
      { who: 'process 77 (postgres)', path: '/data/base/1' },
    ]);
    expect((await look('/pods/a/mount/sub', fake)).uses).toHaveLength(1);
    expect((await look('/pods/a/mount/other', fake)).uses).toEqual([]);
    // The same name in the host is another file.
    expect((await look('/data', fake)).uses).toEqual([]);
  });

  it('a file that is only mapped counts', async () => {
    const fake = fakeProc('mapped', {});
    fs.writeFileSync(
      join(fake.proc, '77/maps'),
      '7f00-7f01 r-xp 00000000 00:00 0\n7f02-7f03 r--s 00000000 08:16 12   /data/mapped file\n',
    );
    expect((await look('/pods/a/mount', fake)).uses).toEqual([
      { who: 'process 77 (postgres)', path: '/data/mapped file' },
    ]);
  });

  it('what may not be looked into is counted, and a container says that it is one', async () => {
    const fake = fakeProc('unseen', {});
    fs.rmSync(join(fake.proc, '77/ns/mnt'));
    expect(await look('/pods/a/mount', fake)).toEqual({
      uses: [],
      unseenProcesses: 1,
      seesWholeMachine: true,
    });
    fs.rmSync(join(fake.proc, 'self/ns/pid'));
    fs.symlinkSync('pid:[4026532000]', join(fake.proc, 'self/ns/pid'));
    expect((await look('/pods/a/mount', fake)).seesWholeMachine).toBe(false);
  });
});

it('places of paths: the deepest mount counts, and the last one of those at one point', () => {
  const mounts = parseMounts(
    [
      '1 0 8:1 / / rw - ext4 a rw',
      '2 1 8:2 /root /mnt/with\\040space rw,noatime shared:1 master:2 - xfs b rw',
      '3 2 8:3 / /mnt/with\\040space rw - tmpfs c rw',
      'nonsense',
    ].join('\n'),
  );
  expect(placeOf(mounts, '/mnt/with space/x')).toEqual({
    device: '8:3',
    path: '/x',
    type: 'tmpfs',
  });
  expect(placeOf(mounts, '/mnt/with space')).toEqual({ device: '8:3', path: '/', type: 'tmpfs' });
  expect(placeOf(mounts.slice(0, 2), '/mnt/with space/x')?.path).toBe('/root/x');
  expect(placeOf(mounts, '/mnt/with spaces/x')?.device).toBe('8:1');
  expect(placeOf([], '/x')).toBeUndefined();
});
