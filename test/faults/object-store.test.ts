import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { blobId, type BlobStorage, withRetries } from '../../src/blob/index.ts';
import { type ManifestId, runMaintenance } from '../../src/repository/index.ts';
import {
  listSnapshots,
  planGarbageCollection as collectGarbage,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import {
  applies,
  type Fault,
  type FaultPlan,
  FAULTS,
  type RequestKind,
  REQUESTS,
  startFaultProxy,
} from '../support/fault-proxy.ts';
import { prng } from '../support/golden.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { hasStore, startStore } from '../support/object-stores.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('store-faults');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const IS_LONG = process.env.SOAK === '1';
/** In all, and of each kind of fault on each kind of request. */
const [TOTAL_MIN, CELL_MIN] = IS_LONG ? [2000, 20] : [200, 2];
const FAULT_SHARE = 0.25;
/** Quick, so that thousands of faults fit; a hung request is cut by it too. */
const STALL_MS = IS_LONG ? 1000 : 600;
const RETRIES = { attemptsMax: 40, firstDelayMs: 2, delayMsMax: 40 };

const CELLS = REQUESTS.flatMap((kind) =>
  FAULTS.filter((fault) => applies(fault, kind)).map((fault) => ({ kind, fault })),
);

/** The rarest fault so far for a share of the requests, drawn from a seed. */
function seededPlan(seed: number): FaultPlan & { readonly counts: Map<string, number> } {
  let state = seed;
  const random = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
  const counts = new Map<string, number>();
  const countOf = (kind: RequestKind, fault: Fault): number => counts.get(`${kind} ${fault}`) ?? 0;
  const plan = (kind: RequestKind): Fault | undefined => {
    if (random() > FAULT_SHARE) return undefined;
    const rarest = FAULTS.filter((fault) => applies(fault, kind)).sort(
      (a, b) => countOf(kind, a) - countOf(kind, b),
    )[0] as Fault;
    counts.set(`${kind} ${rarest}`, countOf(kind, rarest) + 1);
    return rarest;
  };
  return Object.assign(plan, { counts });
}

/**
 * Requests of every kind, so that each kind meets every fault. A read must return the stored bytes.
 */
async function exercise(storage: BlobStorage, round: number): Promise<void> {
  for (let i = 0; i < 12; i++) {
    const id = blobId(`longshore-check-${round}-${i}`);
    const data = prng(`${round}-${i}`, 20_000 + i);
    await storage.putBlob(id, [data]);
    expect((await storage.getMetadata(id)).lengthBytes).toBe(data.length);
    expect(data.equals(await storage.getBlob(id))).toBe(true);
    await storage.deleteBlob(id);
  }
}

it.skipIf(!hasStore('minio') || !hasKopia)(
  'nothing is lost or damaged, whatever happens to requests on their way to S3',
  { timeout: IS_LONG ? 3_600_000 : 300_000 },
  async () => {
    const seed = 20_261_121;
    await using store = await startStore('minio');
    const plan = seededPlan(seed);
    await using proxy = await startFaultProxy(store.endpoint, plan);
    const options = {
      storage: { environment: store.environment, stallMs: STALL_MS },
      wrap: (storage: BlobStorage) => withRetries(storage, RETRIES),
      threads: true,
    };
    const direct = store.location('repo');
    const through = store.location('repo', { endpoint: proxy.endpoint });
    await createTest(direct, {}, { storage: { environment: store.environment } });

    const trees: { path: string; id: ManifestId }[] = [];
    const isDone = (): boolean => {
      const total = [...plan.counts.values()].reduce((sum, count) => sum + count, 0);
      const rarest = Math.min(
        ...CELLS.map(({ kind, fault }) => plan.counts.get(`${kind} ${fault}`) ?? 0),
      );
      return total >= TOTAL_MIN && rarest >= CELL_MIN;
    };
    for (let round = 0; !isDone(); round++) {
      const path = join(work, `tree-${round}`);
      makeTree(path, `round ${round}`);
      const repository = await openTest(through, options);
      try {
        await exercise(repository.storage, round);
        const { id, rootEntry } = await backUp(repository, path);
        trees.push({ path, id });
        const back = join(work, 'back');
        await restore(repository, rootEntry, back);
        assertSameTree(path, back);
        fs.rmSync(back, { recursive: true });
        if (round % 3 === 2) {
          const [gone] = trees.splice(0, 1);
          if (gone) {
            repository.manifests.delete(gone.id);
            await repository.flush();
            fs.rmSync(gone.path, { recursive: true });
          }
          await runMaintenance(repository, {
            mode: 'full',
            safety: 'none',
            force: true,
            dryRun: false,
            signal: new AbortController().signal,
            logger: silentLogger,
            collectGarbage,
          });
        }
      } finally {
        await repository.close();
        await repository.storage.close();
      }
    }

    const total = [...plan.counts.values()].reduce((sum, count) => sum + count, 0);
    console.log(`seed ${seed}: ${total} faults in ${trees.length} backups that are kept`);
    for (const kind of REQUESTS) {
      const cells = CELLS.filter((cell) => cell.kind === kind);
      const counts = cells.map(({ fault }) => `${fault} ${plan.counts.get(`${kind} ${fault}`)}`);
      console.log(`  ${kind} (${proxy.requests.get(kind)} requests): ${counts.join(', ')}`);
    }

    // Read the present state without the proxy, by us and by the real Kopia.
    const patient = { environment: store.environment };
    await using repository = await openTest(direct, { storage: patient, threads: true });
    const snapshots = await listSnapshots(repository);
    expect(snapshots.map(({ id }) => id).sort()).toEqual(trees.map(({ id }) => id).sort());
    const roots = snapshots.flatMap(({ rootEntry }) => rootEntry ?? []);
    const verified = await verifyTrees(repository, roots, {
      readAll: true,
      signal: new AbortController().signal,
    });
    expect(verified.problems).toEqual([]);
    const leftovers = await Array.fromAsync(repository.storage.listBlobs('longshore-check'));
    expect(leftovers).toEqual([]);
    const kopia = new Kopia(PASSWORD).connectTo(store.kopia?.('repo') ?? expect.fail());
    kopia.verifyAll();
    await repository.storage.close();
  },
);
