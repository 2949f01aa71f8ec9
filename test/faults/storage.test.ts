import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { type FaultPlan, faulty, withRetries } from '../../src/blob/index.ts';
import { listSnapshots, verifyTrees } from '../../src/snapshot/index.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('storage-faults');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
beforeAll(() => makeTree(at('tree'), 'faults'));

const failure = (): CodedError =>
  new CodedError('STORAGE_FAILED', 'the storage failed on purpose', { retry: 'backoff' });

/** Every n-th request fails, before it takes effect or after. */
function everyNth(n: number): FaultPlan {
  let count = 0;
  return () => {
    if (++count % n === 0) throw failure();
  };
}

it.each([3, 5, 7])(
  'a storage that fails every %ith time loses nothing behind retries',
  async (n) => {
    const repo = at(`nth-${n}`);
    await createTest(repo);
    const wrap = (storage: Parameters<typeof faulty>[0]) =>
      withRetries(faulty(storage, everyNth(n)), { firstDelayMs: 1, attemptsMax: 12 });
    await using repository = await openTest(repo, { wrap });
    const { rootEntry } = await backUp(repository, at('tree'));
    await restore(repository, rootEntry, at(`nth-out-${n}`));
    assertSameTree(at('tree'), at(`nth-out-${n}`));
    if (hasKopia) new Kopia(PASSWORD).connect(repo).verifyAll();
  },
);

it('a storage that is slow is only slow', async () => {
  const repo = at('slow');
  await createTest(repo);
  const wrap = (storage: Parameters<typeof faulty>[0]) => faulty(storage, () => sleep(5));
  await using repository = await openTest(repo, { wrap, threads: true });
  const { rootEntry } = await backUp(repository, at('tree'));
  await restore(repository, rootEntry, at('slow-out'));
  assertSameTree(at('tree'), at('slow-out'));
});

it('without retries a backup ends with the first failure; what was there stays, the next run succeeds', async () => {
  const repo = at('failing');
  await createTest(repo);
  {
    await using repository = await openTest(repo);
    await backUp(repository, at('tree/many'));
  }
  for (const kind of ['s', 'p', 'q', 'xn']) {
    for (const when of ['before', 'after'] as const) {
      const plan: FaultPlan = (request) => {
        if (request.operation === 'put' && request.id.startsWith(kind) && request.when === when)
          throw failure();
      };
      await using repository = await openTest(repo, { wrap: (storage) => faulty(storage, plan) });
      fs.writeFileSync(at('tree/changing'), `${kind} ${when}`);
      await expect(backUp(repository, at('tree')), `${kind} ${when}`).rejects.toMatchObject({
        code: 'STORAGE_FAILED',
      });
      // A failed flush must stop all writes, because others might refer to missing contents.
      await expect(backUp(repository, at('tree'))).rejects.toMatchObject({
        code: 'STORAGE_FAILED',
      });
      await using again = await openTest(repo);
      const roots = (await listSnapshots(again)).flatMap(({ rootEntry }) => rootEntry ?? []);
      const options = { readAll: true, signal: new AbortController().signal };
      expect((await verifyTrees(again, roots, options)).problems).toEqual([]);
    }
  }
  await using repository = await openTest(repo);
  const { rootEntry } = await backUp(repository, at('tree'));
  await restore(repository, rootEntry, at('failing-out'));
  assertSameTree(at('tree'), at('failing-out'));
  if (hasKopia) new Kopia(PASSWORD).connect(repo).verifyAll();
});

it('an index that does not fit into its memory is looked up in files', async () => {
  const repo = at('small-memory');
  await createTest(repo);
  for (let round = 0; round < 12; round++) {
    await using repository = await openTest(repo, { indexMemoryBytes: 200 });
    fs.writeFileSync(at('tree/changing'), `round ${round}`);
    const { counters } = await backUp(repository, at('tree'));
    if (round > 0) expect(counters.contentsNew).toBe(1);
  }
  await using repository = await openTest(repo, { indexMemoryBytes: 200 });
  // Retention keeps the latest ten.
  expect(await listSnapshots(repository)).toHaveLength(10);
});
