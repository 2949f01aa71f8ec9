import * as util from 'node:util';
import { expect, it } from 'vitest';
import { codeOf, isCode, messageOf, systemCode } from '../../../src/base/index.ts';

/** As Node's `fs` makes them. */
function systemError(errno: number): Error {
  const code = util.getSystemErrorName(-errno);
  const text = `${code}: ${util.getSystemErrorMessage(-errno)}, write '/a'`;
  return Object.assign(new Error(text), { errno: -errno, code, syscall: 'write' });
}

/** As its `writeSync` makes them. */
const withoutNumber = (errno: number): Error =>
  Object.assign(new Error('UNKNOWN: unknown error, write'), {
    errno: -errno,
    code: 'UNKNOWN',
    syscall: 'write',
  });

it('every error of Linux has a name', () => {
  /** Numbers that were never given out. */
  const holes = [41, 58];
  for (let errno = 1; errno <= 133; errno++) {
    if (holes.includes(errno)) continue;
    expect(systemCode(systemError(errno))).toMatch(/^E[A-Z0-9]+$/);
    expect(messageOf(systemError(errno))).toMatch(/^E[A-Z0-9]+: [^:]+.*, write '\/a'$/);
  }
});

it.each([
  [122, 'EDQUOT', "EDQUOT: disk quota exceeded, write '/a'"],
  [116, 'ESTALE', "ESTALE: stale file handle, write '/a'"],
  [117, 'EUCLEAN', "EUCLEAN: structure needs cleaning, write '/a'"],
  [126, 'ENOKEY', "ENOKEY: required key not available, write '/a'"],
  [133, 'EHWPOISON', "EHWPOISON: memory page has hardware error, write '/a'"],
  [121, 'EREMOTEIO', "EREMOTEIO: remote I/O error, write '/a'"],
  [28, 'ENOSPC', "ENOSPC: no space left on device, write '/a'"],
])('%i is %s', (errno, code, message) => {
  const error = systemError(errno);
  expect([systemCode(error), codeOf(error), messageOf(error)]).toEqual([code, code, message]);
  expect(isCode(error, code)).toBe(true);
});

it('an error without its number in the text is told by its errno', () => {
  const error = withoutNumber(122);
  expect([systemCode(error), codeOf(error), messageOf(error)]).toEqual([
    'EDQUOT',
    'EDQUOT',
    'EDQUOT: disk quota exceeded, write',
  ]);
  // What libuv itself means by it.
  expect(systemCode(withoutNumber(4094))).toBe('UNKNOWN');
  expect(messageOf(withoutNumber(4094))).toBe('UNKNOWN: unknown error, write');
});

it('what Linux has no name for either stays as it is', () => {
  expect(systemCode(systemError(1221))).toBe('Unknown system error -1221');
  expect(messageOf(systemError(1221))).toBe(systemError(1221).message);
  expect(codeOf('EDQUOT')).toBeUndefined();
  expect(codeOf({ code: 122 })).toBeUndefined();
});

it('an error of another layer that tells of one names it too', () => {
  const { message } = systemError(122);
  expect(messageOf(new Error(`cannot write: ${message} (tried twice)`))).toBe(
    "cannot write: EDQUOT: disk quota exceeded, write '/a' (tried twice)",
  );
});
