import { expect, it } from 'vitest';
import { Agent } from '../../src/agent/index.ts';
import { type Clock, silentLogger } from '../../src/base/index.ts';
import { DATA_DOWNLOADS, PODS } from '../../src/kube/index.ts';
import { SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';
import { NAMESPACE, World } from './world.ts';

const START_MS = Date.UTC(2026, 0, 1);
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 50 };
const PREPARE_MS = 1_800_000;
/** It ends before anything has failed for as long as it may. */
const FULL_MS = PREPARE_MS - 2000;

it('a pod that waited for a claim that could not be made has its time from then on', async () => {
  using time = new VirtualTime(1);
  time.install();
  const random = new Random(1);
  const clock: Clock = { nowNs: () => BigInt(Math.round((START_MS + time.nowMs) * 1e6)) };
  const world = new World(time, random, clock, {
    nodes: ['node'],
    moverDeath: () => 0,
    moverDeathsMax: 0,
    fenceMs: 40_000,
    reclaimPolicy: 'Delete',
    moveMs: () => 60_000,
  });
  world.store.create(PODS, NAMESPACE, {
    metadata: { name: 'agent', labels: { role: 'node-agent' } },
    spec: { nodeName: 'node', containers: [] },
  } as never);
  world.patch(PODS, NAMESPACE, 'agent', { status: { phase: 'Running' } });
  let fullSinceMs: number | undefined;
  const weather = (): Weather => {
    const isFull = fullSinceMs !== undefined && time.nowMs < fullSinceMs + FULL_MS;
    return { ...CALM, isFull };
  };
  const client = new SimulatedClient(world.store, time, clock, random, weather, (what) => {
    if (what === 'create persistentvolumeclaims') fullSinceMs ??= time.nowMs;
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
  world.addTarget('app', 'data');
  world.repository.set('id', 'content');
  world.store.create(DATA_DOWNLOADS, NAMESPACE, {
    metadata: { name: 'restore' },
    spec: {
      sourceNamespace: 'app',
      backupStorageLocation: 'default',
      operationTimeout: '10m0s',
      targetVolume: { namespace: 'app', pvc: 'data', pv: '' },
      snapshotID: 'id',
    },
  } as never);
  const statusOf = (): { phase?: string; message?: string } =>
    (world.store.get(DATA_DOWNLOADS, NAMESPACE, 'restore') as { status?: object }).status ?? {};
  await time.run(2 * FULL_MS, () => ['Completed', 'Failed'].includes(statusOf().phase ?? ''));
  abort.abort();
  client.kill();
  expect(fullSinceMs).toBeDefined();
  expect(statusOf()).toMatchObject({ phase: 'Completed' });
});
