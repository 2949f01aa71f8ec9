import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { randomBytes } from '../../base/index.ts';

export interface SampleSize {
  readonly largeFileBytes: number;
  readonly smallFiles: number;
}

const APPEND_BYTES = 8 << 20;

/** Writes files like those of an application: many small ones, a large one, a link. */
export async function makeSample(
  path: string,
  { largeFileBytes, smallFiles }: SampleSize,
): Promise<void> {
  await fs.mkdir(join(path, 'documents'), { recursive: true });
  await fs.mkdir(join(path, 'database'));
  for (let i = 0; i < smallFiles; i++) {
    await fs.writeFile(join(path, 'documents', `note-${i}.txt`), randomBytes(200 + (i % 50) * 100));
  }
  const table = await fs.open(join(path, 'database', 'table.bin'), 'w');
  try {
    for (let done = 0; done < largeFileBytes; done += APPEND_BYTES) {
      // Unlike `write`, never writes only a part: a full disk is an error.
      await table.appendFile(randomBytes(Math.min(APPEND_BYTES, largeFileBytes - done)));
    }
  } finally {
    await table.close();
  }
  await fs.symlink('../documents/note-0.txt', join(path, 'database', 'first-note'));
}
