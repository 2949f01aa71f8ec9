import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { BlobId, BlobStorage, GetOptions } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import { verifyContents } from '../../src/repository/index.ts';
import { listSnapshots, verifyTrees } from '../../src/snapshot/index.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('reread');
const at = (name: string): string => join(work, name);
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
beforeAll(async () => {
  makeTree(at('tree'), 'reread');
  await createTest(at('repo'));
  await using repository = await openTest(at('repo'));
  await backUp(repository, at('tree'));
});

/** Flips a bit in the read data of packs and indexes: at the first read, or at every read. */
class FlippingStorage extends ForwardingStorage {
  readonly #always: boolean;
  readonly #seen = new Set<string>();
  flips = 0;

  constructor(inner: BlobStorage, always: boolean) {
    super(inner);
    this.#always = always;
  }

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const bytes = await super.getBlob(id, options);
    const isFirst = !this.#seen.has(id);
    this.#seen.add(id);
    if (/^[pqx]/.test(id) && (isFirst || this.#always)) {
      this.flips++;
      const at = Math.floor(bytes.length / 2);
      bytes[at] = (bytes[at] ?? 0) ^ 1;
    }
    return bytes;
  }
}

async function readAll(): Promise<{ flips: number; target: string }> {
  let storage: FlippingStorage | undefined;
  await using repository = await openTest(at('repo'), {
    wrap: (inner) => (storage = new FlippingStorage(inner, false)),
  });
  const { signal } = new AbortController();
  const snapshots = await listSnapshots(repository);
  const roots = snapshots.flatMap(({ rootEntry }) => rootEntry ?? []);
  const target = at('restored');
  fs.rmSync(target, { recursive: true, force: true });
  await restore(repository, roots[0] ?? expect.fail(), target);
  const trees = await verifyTrees(repository, roots, { readAll: true, signal });
  expect(trees.problems).toEqual([]);
  return { flips: storage?.flips ?? 0, target };
}

it('what changed on its way once is asked for again: indexes, directories, files', async () => {
  const { flips, target } = await readAll();
  expect(flips).toBeGreaterThanOrEqual(3);
  assertSameTree(at('tree'), target);
});

it('a blob that is damaged at each read is reported', async () => {
  await using repository = await openTest(at('repo'), {
    wrap: (inner) => new FlippingStorage(inner, true),
  });
  const [first] = repository.contents.unreadableIndexes;
  expect(first).toMatchObject({ code: 'DAMAGED_BLOB' });
});

it('verification reads once more before it reports', async () => {
  await using repository = await openTest(at('repo'), {
    wrap: (inner) => new FlippingStorage(inner, false),
  });
  const problems: unknown[] = [];
  await verifyContents(repository, {
    readAll: true,
    signal: new AbortController().signal,
    counters: { contents: 0, packs: 0, bytesRead: 0 },
    onProblem: (problem) => problems.push(problem),
  });
  expect(problems).toEqual([]);
});
