import { existsSync, fstatSync, readdirSync, readlinkSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { expect, it } from 'vitest';
import { Secret, silentLogger } from '../../src/base/index.ts';
import {
  createFormat,
  type MaintenanceReport,
  openRepository,
  type Repository,
  runMaintenance,
} from '../../src/repository/index.ts';
import { contentIdOf } from '../../src/repository/index/content-id.ts';
import { CommittedIndex } from '../../src/repository/index/committed-index.ts';
import { memorySource } from '../../src/repository/index/byte-source.ts';
import { IndexBody } from '../../src/repository/index/index-body.ts';
import { encodeIndex, sortEntries } from '../../src/repository/index/index-writer.ts';
import { freeScratchBytes, ScratchFile } from '../../src/repository/index/scratch-file.ts';
import { planGarbageCollection } from '../../src/snapshot/index.ts';
import { noise } from '../support/noise.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { CLIENT, DEFAULT_FORMAT, PASSWORD, sameSalt } from '../support/repositories.ts';

const password = new Secret(PASSWORD);

const maintain = (repository: Repository, freeBytes: number): Promise<MaintenanceReport> =>
  runMaintenance(repository, {
    mode: 'full',
    safety: 'none',
    force: false,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage: planGarbageCollection,
    freeScratchBytes: () => freeBytes,
  });

it('maintenance whose index may not fit into the scratch directory does not begin', async () => {
  const storage = new MemoryStorage();
  await createFormat(storage, password, DEFAULT_FORMAT, sameSalt(), () => Promise.resolve());
  {
    await using writer = await openRepository({ storage, password, client: CLIENT });
    for (let i = 0; i < 100; i++) await writer.contents.write(Buffer.of(i), { prefix: '' });
    await writer.flush();
  }
  const before = [...storage.blobs.keys()];
  // No memory for the index.
  const options = { storage, password, client: CLIENT, indexMemoryBytes: 0 };
  await using repository = await openRepository(options);
  const { scratchBytesBesideMarksMax: scratchBytes } = repository.contents;
  expect(scratchBytes).toBeGreaterThan(100 * 36 * 3);
  const refused = maintain(repository, scratchBytes - 1);
  await expect(refused).rejects.toMatchObject({
    code: 'SCRATCH_FULL',
    facts: { neededBytes: scratchBytes, freeBytes: scratchBytes - 1 },
  });
  await expect(refused).rejects.toThrow(`in the scratch directory ${tmpdir()}, which has`);
  expect([...storage.blobs.keys()]).toEqual(before);
  const { mode } = await maintain(repository, scratchBytes);
  expect(mode).toBe('full');
});

it('maintenance whose index fits into memory needs no scratch directory', async () => {
  const storage = new MemoryStorage();
  await createFormat(storage, password, DEFAULT_FORMAT, sameSalt(), () => Promise.resolve());
  await using repository = await openRepository({ storage, password, client: CLIENT });
  await repository.contents.write(Buffer.of(1), { prefix: '' });
  await repository.flush();
  expect(repository.contents.scratchBytesMax).toBe(0);
  expect((await maintain(repository, 0)).mode).toBe('full');
});

it('what is left of a scratch directory is asked of the system, and one that is missing is said so', () => {
  expect(freeScratchBytes()).toBeGreaterThan(0);
  expect(() => freeScratchBytes('/nowhere/at/all')).toThrow(
    expect.objectContaining({ code: 'SCRATCH_UNUSABLE' }),
  );
});

it('an index that is read anew twice beside marks takes no more scratch space than it says', () => {
  const files = '/proc/self/fd';
  if (!existsSync(files)) return;
  const liveBytes = (): number => {
    let sum = 0;
    for (const name of readdirSync(files)) {
      try {
        const isScratch = readlinkSync(`${files}/${name}`).includes('longshore-scratch');
        if (isScratch) sum += fstatSync(Number(name)).size;
      } catch {
        // Closed meanwhile.
      }
    }
    return sum;
  };
  const others = liveBytes();
  let peak = 0;
  const openScratch = (): ScratchFile =>
    new ScratchFile(tmpdir(), (descriptor, bytes, offset, length, position) => {
      const written = writeSync(descriptor, bytes, offset, length, position);
      peak = Math.max(peak, liveBytes() - others);
      return written;
    });
  const blobs = Array.from({ length: 150 }, (_, blob) =>
    encodeIndex(
      2,
      sortEntries(
        Array.from({ length: 1000 }, (_, i) => ({
          contentId: contentIdOf('', noise(`${blob}-${i}`, 16)),
          packBlobId: `p${'ab'.repeat(16)}`,
          packOffset: i,
          packedLength: 100,
          originalLength: 72,
          timestampSeconds: 1_700_000_000 + i,
          deleted: false,
          formatVersion: 3,
          compressionHeaderId: 0,
          encryptionKeyId: 0,
        })),
      ),
    ),
  );
  const read = (): CommittedIndex => {
    const index = new CommittedIndex(512 << 10, 0, { openScratch });
    for (const bytes of blobs) index.add(new IndexBody(memorySource(new Uint8Array(bytes))));
    index.settle();
    return index;
  };
  const first = read();
  const { scratchBytesMax, scratchBytesBesideMarksMax } = first;
  const there = liveBytes() - others;
  expect(there).toBeGreaterThan(0);
  const marks = first.openMarks(17);
  peak = 0;
  const second = read();
  first.close();
  expect(peak - there).toBeLessThan(scratchBytesMax);
  const third = read();
  second.close();
  // More than without marks.
  expect(peak - there).toBeGreaterThan(scratchBytesMax);
  expect(peak - there).toBeLessThan(scratchBytesBesideMarksMax);
  marks.close();
  third.close();
});
