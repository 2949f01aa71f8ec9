import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { expect, it } from 'vitest';
import { posix } from '../../src/base/index.ts';

it.runIf(posix().native)(
  'a flush that fails is an error, never taken for one that is not available',
  () => {
    const directory = fs.openSync(tmpdir(), 'r');
    expect(posix().syncFilesystem(directory)).toBe(true);
    fs.closeSync(directory);
    expect(() => posix().syncFilesystem(-1)).toThrow(/EBADF: syncfs failed/);
  },
);
