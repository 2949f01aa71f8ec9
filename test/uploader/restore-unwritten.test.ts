import fs from 'node:fs';
import * as fsPromises from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import type { Repository } from '../../src/repository/index.ts';
import type { DirectoryEntry } from '../../src/snapshot/index.ts';
import { TargetDirectory } from '../../src/uploader/restore/target-directory.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

/**
 * The next restore skips a file with the right size and time. No file may have both before its
 * bytes are written.
 */
const work = tempDirectory('unwritten');
const at = (name: string): string => join(work, name);
let repository: Repository;
let root: DirectoryEntry;

beforeAll(async () => {
  await createTest(at('repo'), { splitter: 'FIXED-1M' });
  repository = await openTest(at('repo'));
  fs.mkdirSync(at('source'));
  fs.writeFileSync(at('source/large'), noise('large', 3_000_000));
  fs.writeFileSync(at('source/small'), 'small');
  for (const name of ['large', 'small']) fs.utimesSync(at(`source/${name}`), 1e9, 1e9);
  root = (await backUp(repository, at('source'))).rootEntry;
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

/** Calls `look` with the file's path at each flush of an open file's bytes while the task runs. */
async function onDatasync(
  look: (path: string) => void,
  task: () => Promise<unknown>,
): Promise<void> {
  const probe = await fsPromises.open(work, 'r');
  const prototype = Object.getPrototypeOf(probe) as fsPromises.FileHandle;
  await probe.close();
  const descriptor = Object.getOwnPropertyDescriptor(prototype, 'datasync') ?? expect.fail();
  Object.defineProperty(prototype, 'datasync', {
    ...descriptor,
    value: function (this: fsPromises.FileHandle) {
      look(fs.readlinkSync(`/proc/self/fd/${this.fd}`));
      return (descriptor.value as () => Promise<void>).call(this);
    },
  });
  try {
    await task();
  } finally {
    Object.defineProperty(prototype, 'datasync', descriptor);
  }
}

const noRoom = (): Error =>
  Object.assign(new Error('ENOSPC: no space left on device, close'), {
    code: 'ENOSPC',
    syscall: 'close',
  });

async function expectNextIsWhole(target: string, missing: string): Promise<void> {
  expect(fs.readdirSync(target)).not.toContain(missing);
  // A full disk ends the restore: the other file may have been under way.
  const { files, skipped } = await restore(repository, root, target);
  expect(files).toBeGreaterThan(0);
  expect(files + skipped).toBe(2);
  for (const name of ['large', 'small']) {
    expect(fs.readFileSync(join(target, name)).equals(fs.readFileSync(at(`source/${name}`)))).toBe(
      true,
    );
  }
}

describe('a large file', () => {
  it.each(['if-different', 'always'] as const)(
    'has its bytes on disk before its time, unless no restore looks at that (%s)',
    async (overwrite) => {
      const synced: [string, boolean][] = [];
      await onDatasync(
        (path) => synced.push([path, fs.statSync(path).mtimeMs === 1e12]),
        () => restore(repository, root, at(overwrite), { overwrite }),
      );
      const made = expect.stringContaining(at(`${overwrite}/.longshore-restore-`)) as string;
      expect(synced).toEqual(overwrite === 'always' ? [] : [[made, false]]);
    },
  );

  it('whose close fails is taken away', async () => {
    const target = at('unclosed-large');
    const spy = vi.spyOn(TargetDirectory.prototype, 'create').mockImplementation(async function (
      this: TargetDirectory,
      name,
    ) {
      const file = await fsPromises.open(this.pathOf(name), 'wx');
      const close = file.close.bind(file);
      file.close = async () => {
        if (file.fd < 0) return;
        await close();
        throw noRoom();
      };
      return file;
    });
    try {
      await expect(restore(repository, root, target)).rejects.toMatchObject({
        code: 'TARGET_FULL',
      });
    } finally {
      spy.mockRestore();
    }
    await expectNextIsWhole(target, 'large');
  });
});

it('a small file whose close fails is taken away', async () => {
  const target = at('unclosed-small');
  const { closeSync } = fs;
  fs.closeSync = (descriptor) => {
    const path = fs.readlinkSync(`/proc/self/fd/${descriptor}`);
    closeSync(descriptor);
    // Only small files are closed by this function, and files are created under temporary names.
    if (path.includes('/.longshore-restore-')) throw noRoom();
  };
  syncBuiltinESMExports();
  try {
    await expect(restore(repository, root, target)).rejects.toMatchObject({ code: 'TARGET_FULL' });
  } finally {
    fs.closeSync = closeSync;
    syncBuiltinESMExports();
  }
  await expectNextIsWhole(target, 'small');
});
