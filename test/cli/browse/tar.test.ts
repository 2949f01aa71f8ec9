import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import type { Repository } from '../../../src/repository/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import { KopiaFile } from '../../../src/cli/browse/kopia-file.ts';
import { tarOf } from '../../../src/cli/browse/tar.ts';
import { encodeFullHeader, padding, TAR_END } from '../../../src/archive/index.ts';

const head = { name: 'a', type: '0', size: 0, mode: 0o644, mtime: 0, mtimeNs: 0n, uid: 0, gid: 0 };

/** What GNU tar lists of one entry without its bytes. */
function listed(
  fields: Partial<Parameters<typeof encodeFullHeader>[0]>,
  body = Buffer.alloc(0),
): string {
  const bytes = [encodeFullHeader({ ...head, ...fields }), body, padding(body.length), TAR_END];
  return execFileSync('tar', ['--full-time', '--numeric-owner', '-tvf', '-'], {
    ...{ input: Buffer.concat(bytes), env: { ...process.env, TZ: 'UTC', LC_ALL: 'C.UTF-8' } },
    encoding: 'utf8',
  });
}

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
    const entry = { ...{ name: 'pipe', type: 'p', mode: 0, size: 0, mtimeNs: 0n, uid: 0, gid: 0 } };
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
});
