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
import { freeScratchBytes } from '../../src/repository/index/scratch-file.ts';
import { planGarbageCollection } from '../../src/snapshot/index.ts';
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
  // Nothing of the index fits into memory.
  const options = { storage, password, client: CLIENT, indexMemoryBytes: 0 };
  await using repository = await openRepository(options);
  const { scratchBytesMax } = repository.contents;
  expect(scratchBytesMax).toBeGreaterThan(100 * 36 * 2);
  const refused = maintain(repository, scratchBytesMax - 1);
  await expect(refused).rejects.toMatchObject({
    code: 'SCRATCH_FULL',
    facts: { neededBytes: scratchBytesMax, freeBytes: scratchBytesMax - 1 },
  });
  await expect(refused).rejects.toThrow(`in the scratch directory ${tmpdir()}, which has`);
  expect([...storage.blobs.keys()]).toEqual(before);
  const { mode } = await maintain(repository, scratchBytesMax);
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
