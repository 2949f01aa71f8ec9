import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { blobId, type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  type Problem,
  type Repository,
  runMaintenance,
  verifyContents,
} from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import type { UploadResult } from '../../src/uploader/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('restore-beside-maintenance');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

async function packsOf(storage: BlobStorage): Promise<string[]> {
  const data = await Array.fromAsync(storage.listBlobs('p'));
  const metadata = await Array.fromAsync(storage.listBlobs('q'));
  return [...data, ...metadata].map(({ id }) => id);
}

/**
 * Kept open, with the index as it was, while two full runs a day apart rewrite its packs and delete
 * the old ones.
 */
interface World extends AsyncDisposable {
  readonly reader: Repository;
  readonly clock: OffsetClock;
  readonly tree: string;
  readonly snapshot: UploadResult;
  /** Listings of the index that the reader asked for since. */
  readonly looks: () => number;
}

async function worldOf(name: string): Promise<World> {
  const repo = at(`${name}-repo`);
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  const options = { clock, wrap: atClock(repo, clock) };
  const tree = at(`${name}-tree`);
  fs.mkdirSync(join(tree, 'below'), { recursive: true });
  let looks = 0;
  const counted = (storage: BlobStorage): BlobStorage =>
    faulty(storage, ({ operation, id }) => {
      if (operation === 'list' && id === 'x') looks++;
    });
  await using writer = await openTest(repo, options);
  // Short packs of two sessions.
  for (const [i, bytes] of [300_000, 12_000_000].entries()) {
    fs.writeFileSync(join(tree, `file-${i}`), noise(`${name}-${i}`, bytes));
    fs.writeFileSync(join(tree, 'below', `small-${i}`), noise(`${name}-small-${i}`, 5000));
    await backUp(writer, tree);
  }
  const snapshot = await backUp(writer, tree);
  const reader = await openTest(repo, { clock, wrap: counted });
  const before = await packsOf(reader.storage);
  for (let day = 0; day < 2; day++) {
    clock.offsetNs += 25n * HOUR_NS;
    await using owner = await openTest(repo, options);
    await runMaintenance(owner, {
      mode: 'full',
      safety: 'full',
      force: false,
      dryRun: false,
      signal: new AbortController().signal,
      logger: silentLogger,
      collectGarbage,
    });
  }
  const gone = new Set(before).difference(new Set(await packsOf(reader.storage)));
  expect(gone.size).toBeGreaterThan(3);
  looks = 0;
  return {
    reader,
    clock,
    tree,
    snapshot,
    looks: () => looks,
    [Symbol.asyncDispose]: () => reader.close(),
  };
}

describe('packs that maintenance has rewritten and deleted since the index was read', () => {
  it('are found in their new places by a restore', async () => {
    await using world = await worldOf('restore');
    const { reader, snapshot, tree } = world;
    await restore(reader, snapshot.rootEntry, at('restored'));
    assertSameTree(tree, at('restored'));
    // A single check covers all of them.
    expect(world.looks()).toBeLessThanOrEqual(2);
  });

  it('are no damage to a verification', async () => {
    await using world = await worldOf('verify');
    const problems: Problem[] = [];
    await verifyContents(world.reader, {
      readAll: true,
      signal: new AbortController().signal,
      onProblem: (problem) => problems.push(problem),
      counters: { contents: 0, packs: 0, bytesRead: 0 },
    });
    expect(problems).toEqual([]);
  });

  it('that are lost are damage, after one look at the index for all of them', async () => {
    await using world = await worldOf('lost');
    const { reader, snapshot } = world;
    for (const id of await packsOf(reader.storage)) {
      if (id.startsWith('p')) await reader.storage.deleteBlob(blobId(id));
    }
    await expect(restore(reader, snapshot.rootEntry, at('lost'))).rejects.toMatchObject({
      code: 'DAMAGED_BLOB',
      message: expect.stringContaining('the blob is missing') as string,
    });
    expect(world.looks()).toBeLessThanOrEqual(2);
  });
});
