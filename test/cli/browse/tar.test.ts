import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
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
    ['a plain one', {}, '-rw-r--r-- 0/0                   0 1970-01-01 00:00:00 a'],
    [
      'owners of a user namespace',
      { uid: 2_000_000_000, gid: 4_294_967_294 },
      '2000000000/4294967294',
    ],
    ['the largest ids that fit', { uid: 0o7777777, gid: 0o7777777 }, '2097151/2097151'],
    ['a time before 1970', { mtimeNs: -1_500_000_000n }, '1969-12-31 23:59:58.5'],
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

  it('a file of more than 8 GiB has its size in a record', () => {
    const size = 9 * 2 ** 30;
    const bytes = encodeFullHeader({ ...head, size });
    expect(bytes.length).toBe(3 * 512);
    expect(bytes.toString('latin1', 512)).toContain(`size=${size}\n`);
  });
});
