import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { expect, it } from 'vitest';
import { posix } from '../../../src/base/index.ts';
import { hasHugePages, hugeBytes } from '../../support/huge-pages.ts';

it.runIf(posix().native)(
  'a flush that fails is an error, never taken for one that is not available',
  () => {
    const directory = fs.openSync(tmpdir(), 'r');
    expect(posix().syncFilesystem(directory)).toBe(true);
    fs.closeSync(directory);
    expect(() => posix().syncFilesystem(-1)).toThrow(/EBADF: syncfs failed/);
  },
);

it.runIf(posix().native)('memory for data has huge pages, where the kernel has them', () => {
  const bytes = 64 << 20;
  const memory = new WebAssembly.Memory({
    initial: bytes >> 16,
    maximum: bytes >> 16,
    shared: true,
  });
  const before = hugeBytes();
  posix().useHugePages(new Uint8Array(memory.buffer));
  expect(hugeBytes() - before).toBe(hasHugePages() ? bytes : 0);
  // Memory that does not begin at a page is not changed.
  posix().useHugePages(new Uint8Array(memory.buffer, 1));
});
