/**
 * `node bench/cluster.ts [--agents N] [--uploads N] [--downloads N] [--orphans N]
 * [--queue N] [--rate N]`: the agents of N nodes in virtual time, on the embedded API server's
 * store.
 *
 * The agents rest first. Then volumes are moved up and down, a tenth of the nodes dies, and the API
 * server is away for five minutes. Prints requests for each CR by verb and kind, conflicts, and
 * requests at rest. Also prints how long after the outage the first CR was claimed. `--orphans`:
 * downloads whose PVC never comes, and their cost after all other work has ended. `--queue`: number
 * of CRs that are prepared at once.
 *
 * `node bench/cluster.ts --one [--agents N] [--waiting N]`: one of N agents in real time, beside N
 * waiting CRs. Prints its processor time and memory at rest, while the CRs come, and while they
 * wait.
 */
import { parseArgs } from 'node:util';
import { Agent } from '../src/agent/index.ts';
import { type Clock, silentLogger, systemClock } from '../src/base/index.ts';
import { Store } from '../src/dev/api-server/store.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeClient,
  type KubeObject,
  PODS,
  type Resource,
} from '../src/kube/index.ts';
import { SimulatedClient, type Weather } from '../test/simulation/simulated-client.ts';
import { Random, VirtualTime } from '../test/simulation/virtual-time.ts';
import { NAMESPACE } from '../test/simulation/objects.ts';
import { World } from '../test/simulation/world.ts';

const { values } = parseArgs({
  options: {
    agents: { type: 'string', default: '1000' },
    uploads: { type: 'string', default: '500' },
    downloads: { type: 'string', default: '500' },
    orphans: { type: 'string', default: '0' },
    queue: { type: 'string', default: '0' },
    rate: { type: 'string', default: '10' },
    seed: { type: 'string', default: '1' },
    one: { type: 'boolean', default: false },
    waiting: { type: 'string', default: '10000' },
  },
});
const START_MS = Date.UTC(2026, 0, 1);
const REST_MS = 1_800_000;
const OUTAGE_MS = 300_000;
const LIMIT_MS = 6 * 3_600_000;
const FINAL = ['Completed', 'Failed', 'Canceled'];
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 50 };
const AWAY: Weather = { ...CALM, refused: 1, cut: 1 };
const agentCount = Number(values.agents);
const movements = [DATA_UPLOADS, DATA_DOWNLOADS] as Resource<KubeObject>[];

function startAgent(client: KubeClient, node: string, signal: AbortSignal): Promise<void> {
  const agent = new Agent({
    client,
    logger: silentLogger,
    node,
    namespace: NAMESPACE,
    dataMovers: new Set(['', 'velero']),
    agentSelector: 'role=node-agent',
    concurrency: 1,
    prepareTimeoutMs: 1_800_000,
    restartsMax: 5,
    stallTimeoutMs: 900_000,
    takeoverMs: 60_000,
    fenceMs: 40_000,
    prepareQueueLength: Number(values.queue),
    exposer: {
      daemonSet: 'node-agent',
      config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
    },
  });
  return agent.run(signal);
}

/** Requests of the agents, by verb and kind. */
class Tally {
  readonly counts = new Map<string, number>();
  conflicts = 0;

  readonly see = (what: string, error?: { code: number; reason: string }): void => {
    if (!error) this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
    else if (error.code === 409 && /update data/.test(what)) this.conflicts++;
  };

  get all(): number {
    return [...this.counts.values()].reduce((sum, n) => sum + n, 0);
  }

  /** Requests per CR, most frequent first. */
  table(count: number): Record<string, number> {
    const sorted = [...this.counts].sort(([, a], [, b]) => b - a);
    return Object.fromEntries(sorted.map(([what, n]) => [what, rounded(n / count)]));
  }

  reset(): void {
    this.counts.clear();
    this.conflicts = 0;
  }
}

async function measureAll(): Promise<void> {
  const seed = Number(values.seed);
  const random = new Random(seed);
  const cpuStart = process.cpuUsage();
  using time = new VirtualTime(seed);
  time.install();
  const clock: Clock = { nowNs: () => BigInt(Math.round((START_MS + time.nowMs) * 1e6)) };
  const nodes = Array.from({ length: agentCount }, (_, i) => `node-${i}`);
  let weather = CALM;
  const world = new World(time, random, clock, {
    nodes,
    moverDeath: () => 0,
    moverDeathsMax: 0,
    fenceMs: 40_000,
    reclaimPolicy: 'Delete',
  });
  const tally = new Tally();
  const away = new Tally();
  const aborts = new Map<string, () => void>();
  const abort = new AbortController();
  for (const node of nodes) {
    const see: Tally['see'] = (what, error) => {
      (weather === AWAY ? away : tally).see(what, error);
    };
    const client = new SimulatedClient(world.store, time, clock, random, () => weather, see);
    const name = `agent-${node}`;
    addAgentPod(world.store, node);
    world.patch(PODS, NAMESPACE, name, { status: { phase: 'Running' } });
    void startAgent(client.asClient, node, abort.signal).catch(() => undefined);
    aborts.set(node, () => {
      client.kill();
      world.patch(PODS, NAMESPACE, name, {
        status: { conditions: [{ type: 'Ready', status: 'False' }] },
      });
    });
  }
  const phases = new Map<string, string>();
  const left = new Set<string>();
  let firstClaimMs: number | undefined;
  let backMs = Infinity;
  for (const resource of movements) {
    world.store.watch(resource, {}, world.store.version, (_type, { metadata, status }) => {
      const { phase = 'New' } = (status ?? {}) as { phase?: string };
      const before = phases.get(metadata.name);
      phases.set(metadata.name, phase);
      if (phase === 'Accepted' && before !== 'Accepted' && time.nowMs > backMs) {
        firstClaimMs ??= time.nowMs - backMs;
      }
      if (FINAL.includes(phase) && (metadata.finalizers ?? []).length === 0)
        left.delete(metadata.name);
    });
  }
  await time.run(60_000, () => false);
  tally.reset();
  await time.run(time.nowMs + REST_MS, () => false);
  const atRest = tally.all / agentCount / (REST_MS / 1000);
  tally.reset();

  const [uploads, downloads] = [Number(values.uploads), Number(values.downloads)];
  const count = uploads + downloads;
  const orphans = Number(values.orphans);
  const gapMs = 1000 / Number(values.rate);
  const startMs = time.nowMs;
  for (let i = 0; i < orphans; i++) create(world, 'download', `orphan-${i}`);
  for (let i = 0; i < count; i++) {
    const kind = i % count < uploads ? 'upload' : 'download';
    const name = `${kind}-${i}`;
    left.add(name);
    if (kind === 'upload') {
      world.addVolume('app', name, 'content');
      world.addSnapshot('app', `snap-${name}`, name);
    } else {
      world.addTarget('app', name);
      world.repository.set(`id-${name}`, 'content');
    }
    // Half come before the outage, and half while it goes on.
    const atMs = 5000 + i * gapMs;
    time.after(atMs, () => {
      create(world, kind, name);
    });
  }
  const halfMs = 5000 + (count / 2) * gapMs;
  time.after(halfMs / 2, () => {
    for (const node of nodes.slice(0, Math.floor(agentCount / 10))) {
      aborts.get(node)?.();
      world.loseNode(node);
    }
  });
  time.after(halfMs, () => {
    weather = AWAY;
    time.after(OUTAGE_MS, () => {
      weather = CALM;
      backMs = time.nowMs;
    });
  });
  const done = await time.run(startMs + LIMIT_MS, () => left.size === 0);
  const cpu = process.cpuUsage(cpuStart);
  const ends = [...phases.values()].reduce<Record<string, number>>((sum, phase) => {
    sum[phase] = (sum[phase] ?? 0) + 1;
    return sum;
  }, {});
  const table = tally.table(count);
  console.log(
    JSON.stringify(
      {
        agents: agentCount,
        uploads,
        downloads,
        orphans,
        queue: Number(values.queue),
        done,
        ends,
        violations: world.violations.length,
        seconds: Math.round((time.nowMs - startMs) / 1000),
        requestsPerCr: rounded(tally.all / count),
        conflictsPerCr: tally.conflicts / count,
        atRestPerAgentSecond: rounded(atRest),
        perAgentSecondInTheOutage: rounded(away.all / agentCount / (OUTAGE_MS / 1000)),
        firstClaimAfterOutageSeconds: firstClaimMs === undefined ? null : firstClaimMs / 1000,
        processorSeconds: Math.round((cpu.user + cpu.system) / 1e6),
        table,
      },
      undefined,
      1,
    ),
  );
  if (orphans > 0) {
    await time.run(time.nowMs + 600_000, () => false);
    tally.reset();
    await time.run(time.nowMs + 600_000, () => false);
    const perSecond = rounded(tally.all / 600);
    console.log(JSON.stringify({ orphans, requestsPerSecondOfAllAgents: perSecond }));
    console.log(JSON.stringify(tally.table(600)));
  }
  abort.abort();
  for (const kill of aborts.values()) kill();
}

function addAgentPod(store: Store, node: string): void {
  const metadata = { name: `agent-${node}`, labels: { role: 'node-agent' } };
  store.create(PODS, NAMESPACE, { metadata, spec: { nodeName: node, containers: [] } } as never);
}

function create(
  { store }: { store: Store },
  kind: 'upload' | 'download',
  name: string,
  status?: object,
): void {
  const common = {
    sourceNamespace: 'app',
    backupStorageLocation: 'default',
    operationTimeout: '10m0s',
  };
  const own =
    kind === 'upload'
      ? {
          snapshotType: 'CSI',
          csiSnapshot: {
            volumeSnapshot: `snap-${name}`,
            storageClass: 'simulated',
            snapshotClass: '',
          },
          sourcePVC: name,
        }
      : { targetVolume: { namespace: 'app', pvc: name, pv: '' }, snapshotID: `id-${name}` };
  const resource = (kind === 'upload' ? DATA_UPLOADS : DATA_DOWNLOADS) as Resource<KubeObject>;
  const spec = { ...common, ...own };
  store.create(resource, NAMESPACE, { metadata: { name }, spec, status } as never);
}

/**
 * A single agent in this process. The API server's store is here too, but is idle while the agent
 * rests. All other agents are their pods only. Every CR waits, because CRs of other agents fill the
 * queue.
 */
async function measureOne(): Promise<void> {
  const store = new Store(systemClock);
  const nodes = Array.from({ length: agentCount }, (_, i) => `node-${i}`);
  for (const node of nodes) {
    addAgentPod(store, node);
    const found = store.get(PODS, NAMESPACE, `agent-${node}`);
    store.update(PODS, { ...found, status: { phase: 'Running' } }, 'status');
  }
  const tally = new Tally();
  const time = new VirtualTime(1);
  // Real time: the client's own work is measured.
  const real = {
    after: (ms: number, run: () => void) => Number(setTimeout(run, ms)),
    clear: (id: number) => {
      clearTimeout(id);
    },
    get nowMs() {
      return performance.now();
    },
  } as unknown as VirtualTime;
  time[Symbol.dispose]();
  const client = new SimulatedClient(
    store,
    real,
    systemClock,
    new Random(1),
    () => CALM,
    tally.see,
  );
  const abort = new AbortController();
  const running = startAgent(client.asClient, 'node-0', abort.signal);
  const report = async (what: string, ms: number): Promise<void> => {
    const before = process.cpuUsage();
    const startMs = performance.now();
    tally.reset();
    await new Promise((resolve) => setTimeout(resolve, ms));
    const { user, system } = process.cpuUsage(before);
    const seconds = (performance.now() - startMs) / 1000;
    console.log(
      JSON.stringify({
        what,
        agents: agentCount,
        percentOfACore: rounded((user + system) / 1e4 / seconds),
        requestsPerSecond: rounded(tally.all / seconds),
        residentMiB: Math.round(process.memoryUsage.rss() / 2 ** 20),
      }),
    );
  };
  await report('starts', 3000);
  await report('rests', 30_000);
  const waiting = Number(values.waiting);
  for (let i = 0; i < Math.max(1, Number(values.queue)); i++) {
    create({ store }, 'upload', `busy-${i}`);
    const found = structuredClone(store.get(DATA_UPLOADS, NAMESPACE, `busy-${i}`));
    found.metadata.labels = { 'velero.io/expose-on-going': 'true' };
    const status = { phase: 'Accepted', acceptedByNode: 'node-1' };
    store.update(DATA_UPLOADS, { ...found, status });
  }
  for (let i = 0; i < waiting; i++)
    create({ store }, i % 2 === 0 ? 'upload' : 'download', `w-${i}`);
  await report(`${waiting} come`, 10_000);
  await report(`${waiting} wait`, 60_000);
  await new Promise((resolve) => setTimeout(resolve, 5.2 * 1000 + agentCount * 150));
  await report(`${waiting} wait for anybody`, 60_000);
  abort.abort();
  await running;
}

function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}

if (values.one) await measureOne();
else await measureAll();
