import { type ChildProcess, execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import type { Repository } from '../../../src/repository/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import {
  type InPlaceCounters,
  type InPlaceOptions,
  restoreBlocksInPlace,
} from '../../../src/uploader/index.ts';
import { canMount } from '../../support/full-disk.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { hasLoopDevices, loopDevice } from '../../support/loop-device.ts';
import { noise } from '../../support/noise.ts';
import { whileRunning } from '../../support/running.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';

const work = tempDirectory('volume-in-place');
const at = (...names: string[]): string => join(work, ...names);
const CHUNK = 128 << 10;
const SIZE = 40 * CHUNK + 4096;
/** Random bytes, a hole, and random bytes. */
const original = Buffer.concat([
  noise('start', 12 * CHUNK),
  Buffer.alloc(16 * CHUNK),
  noise('end', 12 * CHUNK + 4096),
]);
let repository: Repository;
let root: DirectoryEntry;

beforeAll(async () => {
  fs.writeFileSync(at('image'), original);
  await createTest(at('repo'), { splitter: 'FIXED-128K' });
  repository = await openTest(at('repo'), { threads: true });
  root = (await backUp(repository, at('image'), { block: true })).rootEntry;
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

const inPlace = (target: string, options: Partial<InPlaceOptions> = {}): Promise<InPlaceCounters> =>
  restoreBlocksInPlace(repository, root, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    ...options,
  });

let number = 0;
function copy(change: (bytes: Buffer) => void = () => undefined): string {
  const bytes = Buffer.from(original);
  change(bytes);
  const path = at(`copy-${number++}`);
  fs.writeFileSync(path, bytes);
  return path;
}

function poke(path: string, offset: number, bytes: Uint8Array | string): void {
  const file = fs.openSync(path, 'r+');
  fs.writeSync(file, Buffer.from(bytes as string), 0, undefined, offset);
  fs.closeSync(file);
}

const whileOpen = (path: string, task: (child: ChildProcess) => Promise<void>): Promise<void> =>
  whileRunning(`exec 3<'${path}'`, task);

describe('an image that is brought back to a snapshot', () => {
  it('is read, and the contents that differ are written', async () => {
    const path = copy((bytes) => bytes.fill(1, 3 * CHUNK - 1, 3 * CHUNK + 1).fill(2, SIZE - 1));
    const result = await inPlace(path);
    const bytesWritten = 2 * CHUNK + 4096;
    expect(result).toMatchObject({ bytesWritten, bytesDifferent: bytesWritten, changed: 1 });
    expect(result.bytesCompared).toBe(SIZE);
    expect(fs.readFileSync(path).equals(original)).toBe(true);
    expect(await inPlace(path)).toMatchObject({ bytesWritten: 0, unchanged: 1 });
  });

  it('is not read where it has holes and the snapshot zeros', async () => {
    const path = copy();
    fs.truncateSync(path, 12 * CHUNK);
    fs.truncateSync(path, SIZE);
    poke(path, 28 * CHUNK, original.subarray(28 * CHUNK));
    expect(await inPlace(path)).toMatchObject({ bytesCompared: SIZE - 16 * CHUNK });
    poke(path, 20 * CHUNK, 'data');
    expect(await inPlace(path)).toMatchObject({ bytesWritten: CHUNK });
    expect(fs.readFileSync(path).equals(original)).toBe(true);
  });

  it('stays as it is in a dry run, and above the bound', async () => {
    const path = copy((bytes) => bytes.fill(1, 0, 3 * CHUNK));
    const before = fs.readFileSync(path);
    expect(await inPlace(path, { dryRun: true })).toMatchObject({
      bytesDifferent: 3 * CHUNK,
      bytesWritten: 0,
    });
    await expect(inPlace(path, { maxWriteBytes: 3 * CHUNK - 1 })).rejects.toMatchObject({
      code: 'WRITE_LIMIT',
    });
    expect(fs.readFileSync(path).equals(before)).toBe(true);
    await inPlace(path, { maxWriteBytes: 3 * CHUNK });
    expect(fs.readFileSync(path).equals(original)).toBe(true);
  });

  it('is refused with another size, and where it is no volume', async () => {
    const path = copy();
    fs.truncateSync(path, SIZE + 512);
    await expect(inPlace(path)).rejects.toMatchObject({
      code: 'TARGET_UNUSABLE',
      message: `cannot restore to ${path}: it has ${SIZE + 512} bytes, but the volume of the snapshot has ${SIZE}; --in-place needs the same size`,
    });
    await expect(inPlace(at('missing'))).rejects.toThrow('it does not exist');
    await expect(inPlace(work)).rejects.toThrow('neither a block device nor an image file');
    expect(fs.existsSync(at('missing'))).toBe(false);
  });

  it('any bytes that were overwritten come back, and no more is written than their contents', async () => {
    const path = copy();
    const edit = fc.record({
      offset: fc.integer({ min: 0, max: SIZE - 1 }),
      length: fc.integer({ min: 1, max: 3 * CHUNK }),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(edit, { minLength: 1, maxLength: 5 }), async (edits) => {
        const touched = new Set<number>();
        for (const { offset, length } of edits) {
          const bytes = noise(`${offset}`, Math.min(length, SIZE - offset));
          poke(path, offset, bytes);
          const last = Math.floor((offset + bytes.length - 1) / CHUNK);
          for (let i = Math.floor(offset / CHUNK); i <= last; i++) touched.add(i);
        }
        const { bytesWritten } = await inPlace(path, { ignoreOpenFiles: true });
        expect(bytesWritten).toBeLessThanOrEqual(touched.size * CHUNK);
        expect(fs.readFileSync(path).equals(original)).toBe(true);
      }),
      { numRuns: 25 },
    );
  });
});

describe('an image that is in use', () => {
  it('by a process that has it open is refused, unless that is not to be looked for', async () => {
    const path = copy((bytes) => bytes.fill(1, 0, 1));
    await whileOpen(path, async ({ pid }) => {
      await expect(inPlace(path)).rejects.toMatchObject({
        code: 'TARGET_IN_USE',
        message: `${path} is in use: process ${pid} (sh) has ${path} open; stop it first, or choose another target`,
      });
      expect(fs.readFileSync(path)[0]).toBe(1);
      expect(await inPlace(path, { ignoreOpenFiles: true })).toMatchObject({ changed: 1 });
    });
    expect(await inPlace(path)).toMatchObject({ unchanged: 1 });
  });

  it('by another restore in place is refused', async () => {
    const path = copy((bytes) => bytes.fill(1, 0, 1));
    const both = await Promise.allSettled([inPlace(path), inPlace(path)]);
    expect(both.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
    const refused = both.find(({ status }) => status === 'rejected') as PromiseRejectedResult;
    expect(refused.reason).toMatchObject({
      code: 'TARGET_IN_USE',
      message: `${path} is locked by another process, perhaps by another restore in place: wait until that has ended`,
    });
  });
});

describe.runIf(hasLoopDevices)('a block device', () => {
  it('is brought back, and refused while it is mounted or open', async () => {
    const image = copy((bytes) => bytes.fill(1, 0, 3 * CHUNK));
    await using device = loopDevice(image);
    await expect(inPlace(image)).rejects.toThrow(/in use: loop device loop\d+ has/);
    await whileOpen(device.path, async ({ pid }) => {
      await expect(inPlace(device.path)).rejects.toThrow(
        `${device.path} is in use: process ${pid} (sh) has ${device.path} open; stop it first`,
      );
    });
    expect(await inPlace(device.path)).toMatchObject({ bytesWritten: 3 * CHUNK });
    execFileSync('sync');
    expect(fs.readFileSync(device.path).equals(original)).toBe(true);
    if (!canMount) return;
    execFileSync('mkfs.ext4', ['-q', '-F', device.path], { stdio: 'pipe' });
    const point = at('mounted');
    fs.mkdirSync(point);
    execFileSync('mount', [device.path, point]);
    try {
      await expect(inPlace(device.path)).rejects.toMatchObject({
        code: 'TARGET_IN_USE',
        message: `${device.path} is in use: it is mounted, or a part of another device; unmount it first`,
      });
    } finally {
      execFileSync('umount', [point]);
    }
  });
});
