import { Agent } from '../../src/agent/index.ts';
import { type Clock, silentLogger } from '../../src/base/index.ts';
import { DATA_DOWNLOADS, DATA_UPLOADS, type KubeObject, PODS } from '../../src/kube/index.ts';
import { SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';
import { NAMESPACE } from './objects.ts';
import { World } from './world.ts';

const START_MS = Date.UTC(2026, 0, 1);
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 50 };
const NODES_COUNT = 5;
const BYTES_PER_MS = 100_000;
const LIMIT_MS = 100 * 3_600_000;

/**
 * The time for 100 volumes on 5 nodes that move one volume at a time, divided by the shortest
 * possible time. `minutes`: the time of each volume.
 */
export async function spread(seed: number, minutes: readonly number[]): Promise<number> {
  using time = new VirtualTime(seed);
  time.install();
  const random = new Random(seed);
  const clock: Clock = { nowNs: () => BigInt(Math.round((START_MS + time.nowMs) * 1e6)) };
  const nodes = Array.from({ length: NODES_COUNT }, (_, i) => `node-${i}`);
  const msOf = (name: string): number => (minutes[Number(name.split('-')[1])] ?? 0) * 60_000;
  const world = new World(time, random, clock, {
    nodes,
    moverDeath: () => 0,
    moverDeathsMax: 0,
    fenceMs: 40_000,
    reclaimPolicy: 'Delete',
    moveMs: msOf,
    isSpread: true,
  });
  const abort = new AbortController();
  for (const node of nodes) startAgent(world, time, clock, random, node, abort.signal);
  minutes.forEach((_, i) => {
    const name = `volume-${i}`;
    const bytes = msOf(name) * BYTES_PER_MS;
    // Every second volume is restored.
    if (i % 2 === 0) {
      world.addVolume('app', name, name, `${bytes}`);
      world.addSnapshot('app', `snap-${name}`, name);
    } else {
      world.addTarget('app', name);
      world.repository.set(`id-${name}`, name);
    }
    const common = { backupStorageLocation: 'default', operationTimeout: '10m0s' };
    const spec =
      i % 2 === 0
        ? {
            ...common,
            sourceNamespace: 'app',
            snapshotType: 'CSI',
            csiSnapshot: { volumeSnapshot: `snap-${name}`, storageClass: 'simulated' },
            sourcePVC: name,
          }
        : {
            ...common,
            sourceNamespace: 'app',
            targetVolume: { namespace: 'app', pvc: name, pv: '' },
            snapshotID: `id-${name}`,
            snapshotSize: bytes,
          };
    time.after(60_000 + i * 100, () => {
      world.store.create(i % 2 === 0 ? DATA_UPLOADS : DATA_DOWNLOADS, NAMESPACE, {
        metadata: { name },
        spec,
      } as never);
    });
  });
  const ended = new Set<string>();
  for (const resource of [DATA_UPLOADS, DATA_DOWNLOADS]) {
    world.store.watch(resource, {}, world.store.version, (_type, object) => {
      const { metadata, status } = object as KubeObject & { status?: { phase?: string } };
      if (status?.phase === 'Completed') ended.add(metadata.name);
    });
  }
  const isDone = await time.run(LIMIT_MS, () => ended.size === minutes.length);
  const tookMs = time.nowMs - 60_000;
  abort.abort();
  if (!isDone || world.violations.length > 0) {
    throw new Error(`${ended.size} of ${minutes.length} ended; ${world.violations.join('; ')}`);
  }
  const sum = minutes.reduce((total, each) => total + each, 0);
  return tookMs / 60_000 / Math.max(sum / NODES_COUNT, ...minutes);
}

function startAgent(
  world: World,
  time: VirtualTime,
  clock: Clock,
  random: Random,
  node: string,
  signal: AbortSignal,
): void {
  const client = new SimulatedClient(world.store, time, clock, random, () => CALM);
  const name = `agent-${node}`;
  world.store.create(PODS, NAMESPACE, {
    metadata: { name, labels: { role: 'node-agent' } },
    spec: { nodeName: node, containers: [] },
  } as never);
  world.patch(PODS, NAMESPACE, name, { status: { phase: 'Running' } });
  const agent = new Agent({
    client: client.asClient,
    logger: silentLogger,
    node,
    namespace: NAMESPACE,
    dataMovers: new Set(['', 'velero']),
    agentSelector: 'role=node-agent',
    concurrency: 1,
    prepareTimeoutMs: 1_800_000,
    restartsMax: 5,
    stallTimeoutMs: 3_600_000,
    takeoverMs: 60_000,
    fenceMs: 40_000,
    prepareQueueLength: 0,
    exposer: {
      daemonSet: 'node-agent',
      config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
    },
  });
  void agent.run(signal).catch(() => undefined);
}
