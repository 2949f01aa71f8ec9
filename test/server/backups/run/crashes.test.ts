import * as fs from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { BackupArchive, bucketOf, readTarball } from '../../../../src/archive/index.ts';
import { CanceledError, CodedError, isCode, silentLogger } from '../../../../src/base/index.ts';
import type { BackupAction, ResourceIdentifier } from '../../../../src/backup/index.ts';
import { type Bucket } from '../../../../src/blob/index.ts';
import {
  archiveStore,
  backupOperationSchema,
  type OperationAsker,
  OperationMap,
} from '../../../../src/item-operations/index.ts';
import { RestoreArchive } from '../../../../src/archive/index.ts';
import type { Discovery, KubeClient } from '../../../../src/kube/index.ts';
import { ClusterRunner } from '../../../../src/server/index.ts';
import { FakeCluster, named } from '../../../backup/support/cluster.ts';
import { bucketThrough } from '../../../support/bucket-through.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { VersionedBucket } from '../../../support/versioned-bucket.ts';
import { randomOf } from '../../../support/random.ts';
import { aBackup } from '../../../support/builders.ts';

/**
 * Backups by servers that are killed at any call, or find the bucket away. No server repeats the
 * work of an earlier one, and the result is complete. `SEED=17 SEEDS=1` repeats one.
 */
const SEEDS = Number(process.env.SEEDS ?? 120);
const FIRST = Number(process.env.SEED ?? 1);
const KILLS_MAX = 15;
const WORKERS_MAX = 3;
/** A claim whose second action fails. The operation of its first action continues. */
const REFUSED = 'a/v0';
const scratch = tempDirectory('runner-crashes');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

class Killed extends Error {}

/** State that survives a server. */
interface World {
  readonly random: () => number;
  readonly bucket: VersionedBucket;
  readonly mode: { readonly isWriteOnce: boolean };
  readonly cluster: FakeCluster;
  /** Number of started operations, by item. */
  readonly begun: Map<string, number>;
  /** Number of hook runs, by pod. */
  readonly hooks: Map<string, { pre: number; post: number }>;
  kills: number;
}

const HOOKS = {
  resources: [
    {
      name: 'freeze',
      pre: [{ exec: { command: ['freeze'], onError: 'Fail' } }],
      post: [{ exec: { command: ['thaw'] } }],
    },
  ],
};

const BACKUP = aBackup({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: { name: 'b1', namespace: 'velero', uid: 'u1', resourceVersion: '1' },
  spec: {
    includedNamespaces: ['*'],
    storageLocation: 'default',
    itemOperationTimeout: '4h0m0s',
    hooks: HOOKS,
  },
  status: { phase: 'InProgress', version: 1, formatVersion: '1.1.0' },
});

function newWorld(seed: number): World {
  const cluster = new FakeCluster().namespaces('a', 'b');
  for (const space of ['a', 'b']) {
    for (let i = 0; i < 12; i++) {
      cluster.add('configmaps', {
        metadata: { name: `c${i}`, namespace: space },
        data: { text: 'x'.repeat(200) },
      });
    }
    for (let i = 0; i < 3; i++) {
      cluster.add('persistentvolumeclaims', named(`${space}/v${i}`));
      cluster.add('pods', {
        metadata: { name: `p${i}`, namespace: space, uid: `${space}-p${i}` },
        spec: { containers: [{ name: 'c' }] },
        status: { phase: 'Running' },
      });
    }
  }
  return {
    random: randomOf(seed),
    cluster,
    bucket: new VersionedBucket(),
    mode: { isWriteOnce: seed % 2 === 0 },
    begun: new Map(),
    hooks: new Map(),
    kills: 0,
  };
}

/** A process that may be killed at each external call. */
class Process {
  readonly #world: World;
  readonly #rate: number;
  isAlive = true;
  readonly death = new AbortController();
  /** Called while an object is being sent. */
  onPut: () => Promise<void> = () => Promise.resolve();

  constructor(world: World, seed: number) {
    this.#world = world;
    this.#rate = world.kills >= KILLS_MAX ? 0 : (seed % 6) * 0.004;
  }

  turn(): void {
    if (!this.isAlive) throw new Killed('gone');
    if (this.#world.random() >= this.#rate) return;
    this.isAlive = false;
    this.#world.kills++;
    // Stops all output of this process.
    this.death.abort(new CanceledError('shutdown'));
    throw new Killed('killed');
  }

  async outside<T>(task: () => Promise<T> | T): Promise<T> {
    this.turn();
    const result = await task();
    this.turn();
    return result;
  }

  get bucket(): Bucket {
    const away = (): void => {
      if (this.#rate > 0 && this.#world.random() < 0.01) {
        throw new CodedError('BLOB_UNAVAILABLE', 'the bucket is away', { retry: 'backoff' });
      }
    };
    return bucketThrough(this.#world.bucket, (call, _, task) =>
      this.outside(async () => {
        if (call === 'has' || call === 'delete') return task();
        away();
        if (call !== 'put') return task();
        await this.onPut();
        const result = await task();
        away();
        return result;
      }),
    );
  }
}

const UNKNOWN: OperationAsker = {
  ask: () => Promise.resolve({ kind: 'unasked', error: 'not yet', isLasting: false }),
  cancel: () => Promise.resolve(),
};

function runnerOf(
  world: World,
  process: Process,
  discovery: Discovery,
): { runner: ClusterRunner; operations: OperationMap } {
  const { cluster } = world;
  const bucket = bucketOf(process.bucket, world.mode);
  const archives = { backups: new BackupArchive(bucket), restores: new RestoreArchive(bucket) };
  const operations = new OperationMap({ store: archiveStore(() => Promise.resolve(archives)) });
  const moves: BackupAction = {
    name: 'example.io/moves',
    appliesTo: { includedResources: ['persistentvolumeclaims'] },
    execute: (item) =>
      process.outside(() => {
        const { namespace = '', name } = item.metadata;
        const key = `${namespace}/${name}`;
        // Like an action that finds its earlier operation for this backup.
        if (!world.begun.has(key)) world.begun.set(key, 0);
        world.begun.set(key, (world.begun.get(key) ?? 0) + 1);
        const items: ResourceIdentifier[] = [];
        return { operationId: `op-${key}`, postOperationItems: items };
      }),
  };
  const fails: BackupAction = {
    name: 'example.io/refuses',
    appliesTo: { includedResources: ['persistentvolumeclaims'] },
    execute: ({ metadata: { namespace = '', name } }) =>
      `${namespace}/${name}` === REFUSED
        ? Promise.reject(new CodedError('REFUSED', 'this one not'))
        : Promise.resolve({}),
  };
  const client = {
    listPage: cluster.listPage,
    find: cluster.find,
    collect: async (resource: never, options: never, take: (item: never) => readonly unknown[]) =>
      (await (cluster.listPage(resource, options) as Promise<{ items: never[] }>)).items.flatMap(
        take,
      ),
    exec: ({ namespace, pod, command }: { namespace: string; pod: string; command: string[] }) =>
      process.outside(() => {
        const key = `${namespace}/${pod}`;
        const counts = world.hooks.get(key) ?? { pre: 0, post: 0 };
        if (command[0] === 'freeze') counts.pre++;
        else counts.post++;
        world.hooks.set(key, counts);
        return { stdout: '', stderr: '' };
      }),
  } as unknown as KubeClient;
  const runner = new ClusterRunner({
    client,
    discovery,
    buckets: {
      open: () => Promise.resolve({ bucket, [Symbol.asyncDispose]: () => Promise.resolve() }),
    },
    archiveOf: (opened) => new BackupArchive(opened),
    sessions: {
      open: () =>
        Promise.resolve({
          loadActions: () => Promise.resolve({ actions: [moves, fails], blockActions: [] }),
          asker: UNKNOWN,
          snapshotter: () => {
            throw new Error('none');
          },
          [Symbol.asyncDispose]: () => Promise.resolve(),
        }),
    },
    operations,
    openVolumes: () =>
      Promise.resolve({
        resume: () => undefined,
        nativeSnapshots: [],
        outcome: () =>
          Promise.resolve({
            nativeSnapshots: [],
            podVolumeBackups: [],
            volumeInfos: [],
            csiSnapshots: 0,
          }),
      }),
    directory: scratch,
    logger: silentLogger,
    logLevel: 'info',
    logFormat: 'text',
    workers: 1 + (world.kills % WORKERS_MAX),
    // Longer than the scheduling delays of a busy machine.
    patienceMs: 800,
  });
  return { runner, operations };
}

async function makeBackup(seed: number): Promise<World> {
  const world = newWorld(seed);
  const discovery = await world.cluster.discovery();
  for (let tries = 0; ; tries++) {
    expect(tries, `seed ${seed} goes on for ever`).toBeLessThan(60);
    const process = new Process(world, seed);
    const { runner } = runnerOf(world, process, discovery);
    try {
      const outcome = await runner.run({
        backup: BACKUP,
        onProgress: () => Promise.resolve(),
        assertLeading: () => {
          process.turn();
        },
        signal: process.death.signal,
      });
      expect(outcome.phase, `seed ${seed}`).toBe('WaitingForPluginOperationsPartiallyFailed');
      expect(outcome.status.errors, `seed ${seed}`).toBe(1);
      return world;
    } catch (error) {
      if (process.isAlive && !isCode(error, 'STILL_AWAY', 'ARCHIVE_NOT_WRITTEN')) throw error;
      if (process.isAlive) world.kills++;
    }
  }
}

/** Each item exists once, and no pod is frozen. */
async function assertWhole(world: World, seed: number): Promise<void> {
  if (world.mode.isWriteOnce) expect(world.bucket.putTwice, `seed ${seed}`).toEqual([]);
  const archive = await new BackupArchive(bucketOf(world.bucket, world.mode)).open('b1');
  const paths: string[] = [];
  for await (const { path } of readTarball(archive.read('contents'), 'contents')) paths.push(path);
  expect(new Set(paths).size).toBe(paths.length);
  const expected = ['a', 'b']
    .flatMap((space) => [
      ...Array.from(
        { length: 12 },
        (_, i) => `resources/configmaps/namespaces/${space}/c${i}.json`,
      ),
      ...Array.from(
        { length: 3 },
        (_, i) => `resources/persistentvolumeclaims/namespaces/${space}/v${i}.json`,
      ),
      ...Array.from({ length: 3 }, (_, i) => `resources/pods/namespaces/${space}/p${i}.json`),
      `resources/namespaces/cluster/${space}.json`,
    ])
    .filter((path) => path !== 'resources/persistentvolumeclaims/namespaces/a/v0.json');
  expect(paths.filter((path) => !path.includes('preferredversion')).sort()).toEqual(
    ['metadata/version', ...expected].sort(),
  );
  const { errors } = await archive.results();
  expect(errors?.namespaces?.a).toHaveLength(1);
  const list = await archive.resourceList();
  expect(list['v1/ConfigMap']?.length).toBe(24);
  expect(list['v1/Pod']?.length).toBe(6);
  const operations = await archive.itemOperations(backupOperationSchema);
  expect(operations.map(({ spec }) => spec.operationID).sort()).toEqual(
    ['a', 'b'].flatMap((space) => [0, 1, 2].map((i) => `op-${space}/v${i}`)).sort(),
  );
  // Only items in a worker at a process's death are taken twice.
  const inFlight = world.kills * WORKERS_MAX;
  const sum = (counts: Iterable<number>): number => [...counts].reduce((a, b) => a + b, 0);
  expect(sum(world.begun.values())).toBeLessThanOrEqual(6 + inFlight);
  expect(sum([...world.hooks.values()].map(({ pre }) => pre))).toBeLessThanOrEqual(6 + inFlight);
  // No pod stays frozen: its last hook is always the thaw.
  for (const [pod, { pre, post }] of world.hooks) {
    expect(post, `${pod} of seed ${seed}`).toBeGreaterThanOrEqual(1);
    expect(pre).toBeLessThanOrEqual(1 + world.kills);
  }
}

describe('a backup by servers that die', () => {
  it.each(Array.from({ length: SEEDS }, (_, index) => FIRST + index))(
    'has everything once: seed %i',
    async (seed) => {
      await assertWhole(await makeBackup(seed), seed);
    },
  );
});

describe('a backup by two servers, of which one does not know that it leads no more', () => {
  it.each(Array.from({ length: Math.ceil(SEEDS / 2) }, (_, index) => FIRST + index))(
    'has everything once: seed %i',
    async (seed) => {
      const world = newWorld(seed);
      const discovery = await world.cluster.discovery();
      const sleeper = new Process(world, 0);
      const leader = new Process(world, 0);
      const at = {
        sleep: 1 + Math.floor(world.random() * 25),
        land: 1 + Math.floor(world.random() * 25),
      };
      let isDeposed = false;
      const landing = Promise.withResolvers<undefined>();
      const deposed = Promise.withResolvers<undefined>();
      let puts = 0;
      sleeper.onPut = async () => {
        if (++puts < at.sleep) return;
        isDeposed = true;
        deposed.resolve(undefined);
        // The put hangs until the test releases it.
        await landing.promise;
      };
      let landed = 0;
      leader.onPut = () => {
        if (++landed === at.land) landing.resolve(undefined);
        return Promise.resolve();
      };
      const runOf = (process: Process, assertLeading: () => void) =>
        runnerOf(world, process, discovery).runner.run({
          backup: BACKUP,
          onProgress: () => Promise.resolve(),
          assertLeading,
          signal: process.death.signal,
        });
      const first = runOf(sleeper, () => {
        if (isDeposed) throw new CodedError('LEADERSHIP_LOST', 'another one leads');
      }).then(
        () => deposed.resolve(undefined),
        (error: unknown) => {
          if (!isCode(error, 'LEADERSHIP_LOST', 'ARCHIVE_NOT_WRITTEN')) throw error;
        },
      );
      await deposed.promise;
      world.kills++;
      const outcome = await runOf(leader, () => undefined);
      expect(outcome.phase, `seed ${seed}`).toBe('WaitingForPluginOperationsPartiallyFailed');
      landing.resolve(undefined);
      await first;
      await assertWhole(world, seed);
      // The late put does not disturb a third server.
      const third = await runOf(new Process(world, 0), () => undefined);
      expect(third).toEqual({
        phase: outcome.phase,
        status: expect.objectContaining({ errors: 1 }) as object,
        // The stored archive has no signature.
        marks: {},
      });
    },
  );
});
