import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import type { Repository } from '../../../src/repository/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import { KopiaFile } from '../../../src/cli/browse/kopia-file.ts';
import { tarOf } from '../../../src/cli/browse/tar.ts';
import type { VolumeFile, WalkedFile } from '../../../src/cli/browse/volume-file.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';
import { CodedError } from '../../../src/base/index.ts';
import { encodeFullHeader, padding, TAR_END } from '../../../src/archive/index.ts';

const head = { name: 'a', type: '0', size: 0, mode: 0o644, mtime: 0, mtimeNs: 0n, uid: 0, gid: 0 };

/** What GNU tar lists of one entry without its bytes. */
function listed(
  fields: Partial<Parameters<typeof encodeFullHeader>[0]>,
  body = Buffer.alloc(0),
): string {
  const bytes = [encodeFullHeader({ ...head, ...fields }), body, padding(body.length), TAR_END];
  return execFileSync('tar', ['--full-time', '--numeric-owner', '-tvf', '-'], {
    input: Buffer.concat(bytes),
    env: { ...process.env, TZ: 'UTC', LC_ALL: 'C.UTF-8' },
    encoding: 'utf8',
  });
}

const RAW = Buffer.from([0x61, 0xff, 0xfe, 0x5c]);
const EXTRACT = `import os, sys, tarfile
# Python before 3.11.4 has no filters.
trusted = {'filter': 'fully_trusted'} if hasattr(tarfile, 'fully_trusted_filter') else {}
tarfile.open(sys.argv[1]).extractall(os.fsencode(sys.argv[2]).decode(), **trusted)`;

describe('names and link targets that are not UTF-8', () => {
  const work = tempDirectory('raw-names');
  afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

  it.each([
    ['GNU tar', 'tar', (file: string, to: string) => ['-xf', file, '-C', to], 'C.UTF-8'],
    ['GNU tar without UTF-8', 'tar', (file: string, to: string) => ['-xf', file, '-C', to], 'C'],
    ['Python', 'python3', (file: string, to: string) => ['-c', EXTRACT, file, to], 'C.UTF-8'],
  ])('%s unpacks the bytes of a backup', async (who, program, args, locale) => {
    const tree = join(work, `${who} tree`);
    const [directory, file] = [Buffer.from(`${tree}/`), Buffer.from('/')];
    const below = Buffer.concat([directory, RAW]);
    fs.mkdirSync(below, { recursive: true });
    fs.writeFileSync(Buffer.concat([below, file, RAW]), 'one');
    fs.writeFileSync(Buffer.concat([below, file, Buffer.from([0x61, 0xfe, 0xff])]), 'two');
    fs.symlinkSync(RAW, Buffer.concat([below, file, Buffer.from('link')]));
    const store = join(work, `${who} store`);
    await createTest(store);
    await using repository = await openTest(store);
    const { rootEntry } = await backUp(repository, tree);
    const pieces: Uint8Array[] = [];
    const options = { signal: new AbortController().signal, onLeftOut: () => undefined };
    for await (const piece of tarOf(new KopiaFile(repository, rootEntry), options)) {
      pieces.push(Buffer.from(piece));
    }
    const [archive, target] = [join(work, `${who}.tar`), join(work, `${who} target`)];
    fs.writeFileSync(archive, Buffer.concat(pieces));
    fs.mkdirSync(target);
    execFileSync(program, args(archive, target), { env: { ...process.env, LC_ALL: locale } });
    const there = Buffer.concat([Buffer.from(`${target}/`), RAW]);
    const names = fs.readdirSync(there, { encoding: 'buffer' }).map((name) => name.toString('hex'));
    expect(names.sort()).toEqual(['61feff', '61fffe5c', '6c696e6b']);
    expect(fs.readFileSync(Buffer.concat([there, file, RAW]), 'utf8')).toBe('one');
    const link = Buffer.concat([there, file, Buffer.from('link')]);
    expect(fs.readlinkSync(link, { encoding: 'buffer' })).toEqual(RAW);
  });
});

describe('entries of archives as tar reads them', () => {
  it.each([
    ['a plain one', {}, '-rw-r--r-- 0/0               0 1970-01-01 00:00:00 a'],
    [
      'owners of a user namespace',
      { uid: 2_000_000_000, gid: 4_294_967_294 },
      '2000000000/4294967294',
    ],
    ['the largest ids that fit', { uid: 0o7777777, gid: 0o7777777 }, '2097151/2097151'],
    ['nanoseconds', { mtimeNs: 1_700_000_000_123_456_789n }, '2023-11-14 22:13:20.123456789'],
    [
      'a time that no field has',
      { mtimeNs: 20_000_000_000n * 1_000_000_000n },
      '2603-10-11 11:33:20',
    ],
    ['a long name', { name: `${'d/'.repeat(200)}ü` }, 'd/ü'],
    ['a link', { type: '2', linkName: '../b' }, 'a -> ../b'],
    ['a long link', { type: '2', linkName: 'ö'.repeat(90) }, `a -> ${'ö'.repeat(90)}`],
    ['a directory', { type: '5', name: 'd/' }, 'drw-r--r--'],
  ])('%s', (_what, fields, text) => {
    expect(listed(fields)).toContain(text);
  });

  it('a time before 1970 is in a record', () => {
    const bytes = encodeFullHeader({ ...head, mtimeNs: -1_500_000_000n });
    expect(bytes.toString('latin1', 512)).toContain('mtime=-1.500000000\n');
  });

  it('leaves out what is neither a file, a directory nor a link, and refuses names that lead elsewhere', async () => {
    const nothing = {} as unknown as Repository;
    const left: string[] = [];
    const options = {
      signal: new AbortController().signal,
      onLeftOut: (path: string) => left.push(path),
    };
    const entry = { name: 'pipe', type: 'p', mode: 0, size: 0, mtimeNs: 0n, uid: 0, gid: 0 };
    const all = async (name: string): Promise<number> => {
      let bytes = 0;
      const root = { ...entry, name } as unknown as DirectoryEntry;
      for await (const piece of tarOf(new KopiaFile(nothing, root), options)) bytes += piece.length;
      return bytes;
    };
    expect(await all('pipe')).toBe(1024);
    expect(left).toEqual(['pipe']);
    for (const name of ['..', '../x', '/etc', 'a/../b', '']) {
      await expect(all(name)).rejects.toMatchObject({ code: 'DAMAGED_SNAPSHOT' });
    }
  });

  it('a file of more than 8 GiB has its size in a record', () => {
    const size = 9 * 2 ** 30;
    const bytes = encodeFullHeader({ ...head, size });
    expect(bytes.length).toBe(3 * 512);
    expect(bytes.toString('latin1', 512)).toContain(`size=${size}\n`);
  });

  describe.each([0, 5, 512, 700])('an archive with a file of %i bytes', (size) => {
    const entryOf = (name: string, type: string): VolumeFile['entry'] => ({
      name,
      type,
      mode: 0o644,
      uid: 0,
      gid: 0,
      mtimeNs: 0n,
      sizeBytes: type === 'f' ? size : 0,
      objectId: name,
    });
    const failure = new CodedError('BLOB_NOT_FOUND', 'blob p1 is not in the storage');
    /** The file gives so many bytes, and the walk goes on behind it where that is all. */
    const unpacked = async (given: number): Promise<string | undefined> => {
      async function* walk(): AsyncGenerator<WalkedFile, void, void> {
        await Promise.resolve();
        const bytes = async function* (): AsyncGenerator<Uint8Array, void, void> {
          await Promise.resolve();
          if (given > 0) yield Buffer.alloc(given, 'Z');
          if (given < size) throw failure;
        };
        yield {
          file: { entry: entryOf('f', 'f'), bytes },
          path: 'f',
          diskPath: () => Buffer.from('f'),
        };
        throw failure;
      }
      const root = {
        entry: entryOf('root', 'd'),
        incomplete: undefined,
        walk,
      } as unknown as VolumeFile;
      const pieces: Uint8Array[] = [];
      const reading = (async () => {
        const options = { signal: new AbortController().signal, onLeftOut: () => undefined };
        for await (const piece of tarOf(root, options)) pieces.push(Buffer.from(piece));
      })();
      await expect(reading).rejects.toBe(failure);
      const { status, stdout } = spawnSync('tar', ['-xOf', '-'], { input: Buffer.concat(pieces) });
      expect(status).not.toBe(0);
      return stdout.toString();
    };

    it('that ends behind it is none that tar takes for a whole one', async () => {
      expect(await unpacked(size)).toBe('Z'.repeat(size));
    });

    it('that ends in it has nothing else in the file', async () => {
      for (const given of [0, size - 1].filter((each) => each < size && each >= 0))
        expect(await unpacked(given)).toMatch(/^Z*$/);
    });
  });
});
