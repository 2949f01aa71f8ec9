import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type BlobStorage, openStorage, withRetries } from '../../src/blob/index.ts';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { hasStore, type ObjectStore, startStore, STORE_KINDS } from '../support/object-stores.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('store-interop');
const tree = join(work, 'tree');
beforeAll(() => {
  makeTree(tree, 'stores');
});
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

async function copyBlobs(from: BlobStorage, to: BlobStorage): Promise<void> {
  for await (const { id } of from.listBlobs('')) await to.putBlob(id, [await from.getBlob(id)]);
}

/** Backs up, ours twice over, and leaves the repository at the location. */
async function writeOurs(location: string, environment: NodeJS.ProcessEnv): Promise<void> {
  const options = { storage: { environment }, wrap: withRetries };
  await createTest(location, {}, options);
  const repository = await openTest(location, options);
  await backUp(repository, tree);
  await repository.close();
  await repository.storage.close();
}

async function restoreOurs(location: string, environment: NodeJS.ProcessEnv): Promise<void> {
  const repository = await openTest(location, { storage: { environment }, wrap: withRetries });
  const [snapshot] = await listSnapshots(repository);
  const target = join(work, 'restored-by-us');
  await restore(repository, snapshot?.rootEntry ?? expect.fail(), target);
  assertSameTree(tree, target);
  fs.rmSync(target, { recursive: true });
  await repository.close();
  await repository.storage.close();
}

function checkWithKopia(kopia: Kopia): void {
  kopia.verifyAll();
  type Listed = { rootEntry: { obj: string } }[];
  const [snapshot] = kopia.json<Listed>('snapshot', 'list', '--all');
  const target = join(work, 'restored-by-kopia');
  kopia.run('snapshot', 'restore', snapshot?.rootEntry.obj ?? '', target);
  assertSameTree(tree, target);
  fs.rmSync(target, { recursive: true });
}

describe.each(STORE_KINDS)('the real Kopia and we, on %s', (kind) => {
  describe.skipIf(!hasStore(kind) || !hasKopia)('real', () => {
    let store: ObjectStore;
    beforeAll(async () => {
      store = await startStore(kind);
    });
    afterAll(() => store[Symbol.asyncDispose]());

    it('Kopia verifies and restores what we wrote', async () => {
      const { environment } = store;
      await writeOurs(store.location('ours'), environment);
      if (store.kopia) {
        checkWithKopia(new Kopia(PASSWORD).connectTo(store.kopia('ours')));
        return;
      }
      // Kopia cannot be pointed at this emulator: the blobs go to a directory as they are.
      const path = join(work, `from-${kind}`);
      await using from = await openStorage(store.location('ours'), { environment });
      await using to = await openStorage(path, { create: true });
      await copyBlobs(from, to);
      checkWithKopia(new Kopia(PASSWORD).connect(path));
    });

    it('we restore what Kopia wrote', async () => {
      const { environment } = store;
      if (store.kopia) {
        const kopia = new Kopia(PASSWORD).createAt(store.kopia('theirs'));
        kopia.run('snapshot', 'create', tree);
      } else {
        const path = join(work, `to-${kind}`);
        new Kopia(PASSWORD).create(path).run('snapshot', 'create', tree);
        await using from = await openStorage(path);
        await using to = await openStorage(store.location('theirs'), { environment });
        await copyBlobs(from, to);
      }
      await restoreOurs(store.location('theirs'), environment);
    });
  });
});
