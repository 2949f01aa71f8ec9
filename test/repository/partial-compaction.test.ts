import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { blobId, type BlobMetadata, listAll } from '../../src/blob/index.ts';
import type { Repository, TaskContext, TaskStats } from '../../src/repository/index.ts';
import { SAFETY } from '../../src/repository/maintenance/safety.ts';
import { makeEntries, putIndex } from '../support/index-blobs.ts';
import { tempDirectory } from '../support/kopia.ts';
import { type Lie, LyingStorage } from '../support/lying-storage.ts';
import { compactRange, compactSingleEpoch } from '../support/maintenance-tasks.ts';
import { createTest, openTest } from '../support/repositories.ts';

/**
 * Contents that a compaction lacks are hidden afterwards, so it never relies on a single listing.
 */
const work = tempDirectory('partial-compaction');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const EPOCHS = 12;
const IN_EPOCH = 3;
const ENTRIES = 5;

interface Epochs extends AsyncDisposable {
  readonly repository: Repository;
  readonly storage: LyingStorage;
  readonly contents: number;
}

/**
 * A repository of a dozen epochs, in each of them some index blobs that each name contents of their
 * own.
 */
async function openEpochs(name: string): Promise<Epochs> {
  const path = join(work, name);
  await createTest(path);
  let storage: LyingStorage | undefined;
  const repository = await openTest(path, { wrap: (inner) => (storage = new LyingStorage(inner)) });
  if (!storage) throw new Error('no storage');
  const entries = makeEntries(EPOCHS * IN_EPOCH * ENTRIES);
  for (let epoch = 0; epoch < EPOCHS; epoch++) {
    if (epoch > 0) await storage.putBlob(blobId(`xe${epoch}`), [Buffer.from('epoch-marker')]);
    for (let i = 0; i < IN_EPOCH; i++) {
      const start = (epoch * IN_EPOCH + i) * ENTRIES;
      const prefix = `xn${epoch}_`;
      await putIndex(storage, repository.codec, entries.slice(start, start + ENTRIES), { prefix });
    }
  }
  await repository.contents.refresh();
  const contents = repository.contents.contentCount;
  expect(contents).toBeGreaterThanOrEqual(entries.length);
  const close = (): Promise<void> => repository.close();
  return { repository, storage, contents, [Symbol.asyncDispose]: close };
}

const contextOf = (repository: Repository): TaskContext => ({
  repository,
  safety: SAFETY.full,
  startNs: repository.clock.nowNs(),
  signal: new AbortController().signal,
  logger: silentLogger,
});

/** The given listing lacks one index blob of epoch 0, and the others lack nothing. */
function lackingOnce(at: number): Lie {
  let listings = 0;
  return (prefix, blobs) => {
    if (prefix !== 'x' || ++listings !== at) return blobs;
    const lacking = blobs.find(({ id }) => id.startsWith('xn0_'));
    return blobs.filter((blob) => blob !== lacking);
  };
}

const compactions: [string, string, (context: TaskContext) => Promise<TaskStats | undefined>][] = [
  ['one epoch', 'xs', compactSingleEpoch],
  ['many epochs', 'xr', compactRange],
];

describe.each(compactions)('a compaction of %s', (_what, prefix, compact) => {
  const compacted = ({ storage }: Epochs): Promise<BlobMetadata[]> => listAll(storage, prefix);

  it.each([1, 2])('is not made when its listing number %i lacks an index blob', async (at) => {
    await using epochs = await openEpochs(`${prefix}-${at}`);
    const { repository, storage, contents } = epochs;
    const context = contextOf(repository);
    storage.lie = lackingOnce(at);
    await expect(compact(context)).rejects.toMatchObject({
      code: 'BAD_LISTING',
      message: expect.stringContaining('nothing was compacted') as string,
    });
    storage.lie = undefined;
    expect(await compacted(epochs)).toEqual([]);
    await compact(context);
    expect(await compacted(epochs)).toHaveLength(1);
    await repository.contents.refresh();
    expect(repository.contents.contentCount).toBe(contents);
  });
});
