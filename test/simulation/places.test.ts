import { expect, it } from 'vitest';
import { Agent } from '../../src/agent/index.ts';
import { type Clock, silentLogger } from '../../src/base/index.ts';
import { DATA_DOWNLOADS, DATA_UPLOADS, PODS, STORAGE_CLASSES } from '../../src/kube/index.ts';
import { SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';
import { NAMESPACE, World } from './world.ts';

const START_MS = Date.UTC(2026, 0, 1);
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 50 };
const RESTORES = 20;

it('restores whose volumes nobody uses yet hold up no backup', async () => {
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
  world.patch(STORAGE_CLASSES, undefined, 'simulated', {
    volumeBindingMode: 'WaitForFirstConsumer',
  });
  world.store.create(PODS, NAMESPACE, {
    metadata: { name: 'agent', labels: { role: 'node-agent' } },
    spec: { nodeName: 'node', containers: [] },
  } as never);
  world.patch(PODS, NAMESPACE, 'agent', { status: { phase: 'Running' } });
  const client = new SimulatedClient(world.store, time, clock, random, () => CALM);
  const agent = new Agent({
    client: client.asClient,
    logger: silentLogger,
    node: 'node',
    namespace: NAMESPACE,
    dataMovers: new Set(['', 'velero']),
    agentSelector: 'role=node-agent',
    concurrency: 1,
    prepareTimeoutMs: 1_800_000,
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
  const common = { backupStorageLocation: 'default', operationTimeout: '10m0s' };
  for (let i = 0; i < RESTORES; i++) {
    world.addTarget('app', `unused-${i}`);
    world.store.create(DATA_DOWNLOADS, NAMESPACE, {
      metadata: { name: `restore-${i}` },
      spec: {
        ...common,
        sourceNamespace: 'app',
        targetVolume: { namespace: 'app', pvc: `unused-${i}`, pv: '' },
        snapshotID: 'some',
      },
    } as never);
  }
  world.addVolume('app', 'data', 'data', '1000');
  world.addSnapshot('app', 'snap', 'data');
  const createdMs = 60_000;
  time.after(createdMs, () => {
    world.store.create(DATA_UPLOADS, NAMESPACE, {
      metadata: { name: 'backup' },
      spec: {
        ...common,
        sourceNamespace: 'app',
        snapshotType: 'CSI',
        csiSnapshot: { volumeSnapshot: 'snap', storageClass: 'simulated' },
        sourcePVC: 'data',
      },
    } as never);
  });
  const isCompleted = (): boolean => {
    if (time.nowMs <= createdMs) return false;
    const { status } = world.store.get(DATA_UPLOADS, NAMESPACE, 'backup') as never as {
      status?: { phase?: string };
    };
    return status?.phase === 'Completed';
  };
  await time.run(4 * 3_600_000, isCompleted);
  abort.abort();
  expect((time.nowMs - createdMs) / 60_000).toBeLessThan(2);
});
