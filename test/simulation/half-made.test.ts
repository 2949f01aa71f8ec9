import { expect, it } from 'vitest';
import { Agent } from '../../src/agent/index.ts';
import { type Clock, silentLogger } from '../../src/base/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeObject,
  PODS,
  type Resource,
} from '../../src/kube/index.ts';
import { SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';
import { NAMESPACE } from './objects.ts';
import { World } from './world.ts';

const START_MS = Date.UTC(2026, 0, 1);
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 50 };
const PREPARE_MS = 1_800_000;
const MINUTE_MS = 60_000;
/** Late enough that the request which begins the trouble still succeeds. */
const LATER_MS = 100;
const COMMON = {
  sourceNamespace: 'app',
  backupStorageLocation: 'default',
  operationTimeout: '10m0s',
};

interface Scene {
  /** The request that begins the trouble. */
  readonly begins: string;
  readonly afterMs: number;
  readonly onBegin?: (world: World) => void;
  readonly forMs: number;
  readonly trouble: Partial<Weather>;
  /** Other clients are refused, too. */
  readonly isForAll: boolean;
  readonly resource: Resource<KubeObject>;
  readonly spec: object;
}

async function play(scene: Scene): Promise<{ phase?: string; message?: string }> {
  using time = new VirtualTime(1);
  time.install();
  const random = new Random(1);
  const clock: Clock = { nowNs: () => BigInt(Math.round((START_MS + time.nowMs) * 1e6)) };
  let sinceMs: number | undefined;
  const isTroubled = (): boolean =>
    sinceMs !== undefined && sinceMs <= time.nowMs && time.nowMs < sinceMs + scene.forMs;
  const world = new World(time, random, clock, {
    nodes: ['node'],
    moverDeath: () => 0,
    moverDeathsMax: 0,
    fenceMs: 40_000,
    reclaimPolicy: 'Delete',
    moveMs: () => MINUTE_MS,
    isFull: () => scene.isForAll && isTroubled(),
  });
  world.store.create(PODS, NAMESPACE, {
    metadata: { name: 'agent', labels: { role: 'node-agent' } },
    spec: { nodeName: 'node', containers: [] },
  } as never);
  world.patch(PODS, NAMESPACE, 'agent', { status: { phase: 'Running' } });
  const weather = (): Weather => ({ ...CALM, ...(isTroubled() && scene.trouble) });
  const client = new SimulatedClient(world.store, time, clock, random, weather, (what) => {
    if (what !== scene.begins || sinceMs !== undefined) return;
    sinceMs = time.nowMs + scene.afterMs;
    scene.onBegin?.(world);
  });
  const agent = new Agent({
    client: client.asClient,
    logger: silentLogger,
    node: 'node',
    namespace: NAMESPACE,
    dataMovers: new Set(['', 'velero']),
    agentSelector: 'role=node-agent',
    concurrency: 1,
    prepareTimeoutMs: PREPARE_MS,
    restartsMax: 3,
    stallTimeoutMs: 3_600_000,
    takeoverMs: 60_000,
    fenceMs: 40_000,
    prepareQueueLength: 0,
    exposer: {
      daemonSet: 'node-agent',
      config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
    },
  });
  const abort = new AbortController();
  void agent.run(abort.signal).catch(() => undefined);
  world.addTarget('app', 'target');
  world.repository.set('id', 'content');
  world.addVolume('app', 'source', 'content');
  await time.run(1000, () => false);
  world.store.create(scene.resource, NAMESPACE, {
    metadata: { name: 'it' },
    spec: { ...COMMON, ...scene.spec },
  } as never);
  const statusOf = (): { phase?: string; message?: string } =>
    (world.store.get(scene.resource, NAMESPACE, 'it') as { status?: object }).status ?? {};
  await time.run(scene.forMs + PREPARE_MS, () =>
    ['Completed', 'Failed'].includes(statusOf().phase ?? ''),
  );
  abort.abort();
  client.kill();
  expect(sinceMs).toBeDefined();
  return statusOf();
}

it('a pod that waited for a claim that could not be made has its time from then on', async () => {
  const status = await play({
    begins: 'create persistentvolumeclaims',
    afterMs: 0,
    // The trouble ends before any time-out.
    forMs: PREPARE_MS - 2000,
    trouble: { isFull: true },
    isForAll: false,
    resource: DATA_DOWNLOADS,
    spec: { targetVolume: { namespace: 'app', pvc: 'target', pv: '' }, snapshotID: 'id' },
  });
  expect(status).toMatchObject({ phase: 'Completed' });
});

it('a restore whose last step was cut short, as the API server took no writes, is tried again', async () => {
  const status = await play({
    begins: 'delete persistentvolumeclaims',
    afterMs: LATER_MS,
    // The trouble ends just before the second time-out of the last step.
    forMs: 20 * MINUTE_MS,
    trouble: { isFull: true },
    isForAll: true,
    resource: DATA_DOWNLOADS,
    spec: { targetVolume: { namespace: 'app', pvc: 'target', pv: '' }, snapshotID: 'id' },
  });
  expect(status).toMatchObject({ phase: 'Completed' });
  expect(status.message).toBeUndefined();
});

it.each([
  ['takes no writes', 40 * MINUTE_MS, { isFull: true }],
  ['takes no writes', 120 * MINUTE_MS, { isFull: true }],
  ['is away', 75 * MINUTE_MS, { refused: 1, cut: 1 }],
] as const)(
  'a snapshot that cannot get ready, as the API server %s for %i ms, fails nothing',
  async (_what, forMs, trouble) => {
    const status = await play({
      begins: 'update datauploads',
      afterMs: LATER_MS,
      onBegin: (world) => {
        world.addSnapshot('app', 'snap', 'source');
      },
      forMs,
      trouble,
      isForAll: true,
      resource: DATA_UPLOADS,
      spec: {
        snapshotType: 'CSI',
        csiSnapshot: { volumeSnapshot: 'snap', storageClass: 'simulated', snapshotClass: '' },
        sourcePVC: 'source',
      },
    });
    expect(status).toMatchObject({ phase: 'Completed' });
  },
);
