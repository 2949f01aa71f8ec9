import { expect, it } from 'vitest';
import { mustCount } from '../../../src/uploader/upload/directories-ahead.ts';

const EXT4 = 0xef53;
const ENTRIES_MAX = 32_768;

it.each([
  ['ZFS', 0x2fc12fc1],
  ['CephFS', 0x00c36400],
  ['FUSE', 0x65735546],
])(
  'a directory of %s is counted when its size, a number of entries, is above the bound',
  async (_name, type) => {
    const fileSystemType = (): Promise<number> => Promise.resolve(type);
    expect(await mustCount(ENTRIES_MAX, ENTRIES_MAX, fileSystemType)).toBe(false);
    expect(await mustCount(ENTRIES_MAX + 1, ENTRIES_MAX, fileSystemType)).toBe(true);
  },
);

it('a directory of a file system that tells bytes is counted only when it is very long', async () => {
  const fileSystemType = (): Promise<number> => Promise.resolve(EXT4);
  expect(await mustCount(131_072, ENTRIES_MAX, fileSystemType)).toBe(false);
  expect(await mustCount(1 << 20, ENTRIES_MAX, fileSystemType)).toBe(false);
  expect(await mustCount((1 << 20) + 1, ENTRIES_MAX, fileSystemType)).toBe(true);
});

it('a directory of usual size is not asked about at all', async () => {
  const unasked = (): Promise<number> => Promise.reject(new Error('asked'));
  expect(await mustCount(4096, ENTRIES_MAX, unasked)).toBe(false);
});
