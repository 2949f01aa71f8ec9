import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { makeSample } from '../../../src/cli/demo/volume.ts';
import { canMount, mountSmallDisk } from '../../support/full-disk.ts';
import { tempDirectory } from '../../support/kopia.ts';

const work = tempDirectory('demo-volume');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const SIZE = { largeFileBytes: (16 << 20) + 5, smallFiles: 10 };

it('the volume of the demo has what it shall have', async () => {
  await makeSample(work, SIZE);
  expect(fs.statSync(join(work, 'database/table.bin')).size).toBe(SIZE.largeFileBytes);
  expect(fs.readdirSync(join(work, 'documents'))).toHaveLength(SIZE.smallFiles);
  expect(fs.statSync(join(work, 'database/first-note')).size).toBe(200);
});

it.skipIf(!canMount)('a disk that takes a part of the last write is an error', async () => {
  using disk = mountSmallDisk(16 << 20);
  const size = { ...SIZE, largeFileBytes: 16 << 20 };
  await expect(makeSample(disk.path, size)).rejects.toMatchObject({ code: 'ENOSPC' });
});
