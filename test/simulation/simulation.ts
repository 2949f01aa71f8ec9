import { Agent } from '../../src/agent/index.ts';
import { ownerOf, RESTARTS } from '../../src/agent/movement.ts';
import { type Clock, type Logger, silentLogger } from '../../src/base/index.ts';
import type { Stored } from '../../src/dev/store.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeObject,
  PODS,
  PVCS,
  PVS,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';
import { NAMESPACE, World } from './world.ts';

const START_MS = Date.UTC(2026, 0, 1);
const CHAOS_MS = 120_000;
/** Nothing may take longer: time-outs, takeovers and retries all end well before. */
const END_MS = 2 * 3_600_000;
const FENCE_MS = 40_000;
const FINAL = ['Completed', 'Failed', 'Canceled'];
const ORDER = ['', 'New', 'Accepted', 'Prepared', 'InProgress', 'Canceling', ...FINAL];
/** Of a node that is cut off. */
const CUT: Weather = { refused: 1, lost: 0, cut: 1, latencyMs: 1000, watchLagMs: 20 };
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 20 };

interface Plan {
  readonly name: string;
  readonly kind: 'upload' | 'download';
  /** What is in the volume, or is to be. */
  readonly content: string;
  fate: 'left alone' | 'canceled' | 'deleted';
}

export interface Course {
  readonly problems: string[];
  /** Phases at the end, by how often. */
  readonly ends: Record<string, number>;
  readonly virtualMs: number;
  readonly crashes: number;
  /** What happened, and how often. */
  readonly counts: ReadonlyMap<string, number>;
}

/**
 * One course of events: some agents, some volumes to move, two minutes of bad weather and crashes, then calm.
 * `trace` is told of every change and of what agents log; for `fullMs` from some time on the API server takes no writes.
 */
export async function simulate(
  seed: number,
  trace?: (line: string) => void,
  { fullMs = 0 }: { fullMs?: number } = {},
): Promise<Course> {
  const random = new Random(seed);
  using time = new VirtualTime(seed);
  time.install();
  const clock: Clock = { nowNs: () => BigInt(Math.round((START_MS + time.nowMs) * 1e6)) };
  const nodes = Array.from({ length: 2 + random.below(3) }, (_, i) => `node-${i}`);
  const isRough = random.chance(0.8);
  const rough: Weather = {
    refused: random.chance(0.5) ? random.between(0, 0.15) : 0,
    lost: random.chance(0.5) ? random.between(0, 0.1) : 0,
    cut: random.chance(0.5) ? random.between(0, 0.2) : 0,
    latencyMs: random.chance(0.3) ? 800 : 30,
    watchLagMs: random.chance(0.3) ? 6000 : 100,
  };
  const fullFromMs = new Random(seed + 1_000_000).between(5000, CHAOS_MS);
  const weather = (): Weather => ({
    ...(isRough && time.nowMs < CHAOS_MS ? rough : CALM),
    isFull: fullFromMs < time.nowMs && time.nowMs < fullFromMs + fullMs,
  });
  const reclaimPolicy = random.chance(0.2) ? 'Retain' : 'Delete';
  const prepareQueueLength = random.chance(0.2) ? 1 + random.below(2) : 0;
  const world = new World(time, random, clock, {
    nodes,
    moverDeath: () => (time.nowMs < CHAOS_MS ? 0.3 : 0),
    moverDeathsMax: 2,
    fenceMs: FENCE_MS,
    reclaimPolicy,
  });
  const course = new Chronicle(world);
  const tell =
    trace &&
    ((text: string) => {
      trace(`${(time.nowMs / 1000).toFixed(3)} ${text}`);
    });
  if (tell) traceStore(world, tell);
  const plans = layOut(world, random, time);
  const abort = new AbortController();
  let crashes = 0;

  const startAgent = (node: string): (() => void) => {
    const here = (): Weather => (world.cutNodes.has(node) ? CUT : weather());
    const client = new SimulatedClient(world.store, time, clock, random, here);
    const own = new AbortController();
    const metadata = { name: `agent-${node}-${Math.round(time.nowMs)}` };
    const labels = { role: 'node-agent' };
    world.store.create(PODS, NAMESPACE, {
      metadata: { ...metadata, labels },
      spec: { nodeName: node, containers: [] },
    } as never);
    world.patch(PODS, NAMESPACE, metadata.name, { status: { phase: 'Running' } });
    const agent = new Agent({
      client: client.asClient,
      logger: tell ? tracingLogger(node, tell) : silentLogger,
      node,
      namespace: NAMESPACE,
      dataMovers: new Set(['', 'velero']),
      agentSelector: 'role=node-agent',
      concurrency: 2,
      prepareTimeoutMs: 900_000,
      restartsMax: 5,
      stallTimeoutMs: 900_000,
      takeoverMs: 60_000,
      fenceMs: FENCE_MS,
      prepareQueueLength,
      exposer: {
        daemonSet: 'node-agent',
        config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
      },
    });
    void agent.run(own.signal).catch((error: unknown) => {
      if (!own.signal.aborted) course.problems.push(`an agent ended: ${String(error)}`);
    });
    return () => {
      client.kill();
      own.abort();
      world.delete(PODS, NAMESPACE, metadata.name);
    };
  };

  const live = new Map(nodes.map((node) => [node, startAgent(node)]));
  const crash = (): void => {
    if (time.nowMs > CHAOS_MS) return;
    time.after(random.between(2000, 30_000), crash);
    const node = nodes[random.below(nodes.length)] ?? '';
    const kill = live.get(node);
    if (!kill) return;
    crashes++;
    tell?.(`CRASH ${node}`);
    live.delete(node);
    kill();
    if (random.chance(0.1) && world.deadNodes.size < nodes.length - 1) {
      world.loseNode(node);
      return;
    }
    const isLong = random.chance(0.2);
    time.after(isLong ? random.between(70_000, 150_000) : random.between(500, 15_000), () => {
      live.set(node, startAgent(node));
    });
  };
  if (random.chance(0.8)) time.after(random.between(1000, 20_000), crash);
  const cutOff = (): void => {
    if (time.nowMs > CHAOS_MS) return;
    time.after(random.between(10_000, 90_000), cutOff);
    const others = nodes.filter((node) => !world.deadNodes.has(node) && !world.cutNodes.has(node));
    if (others.length < 2) return;
    const node = others[random.below(others.length)] ?? '';
    tell?.(`CUT ${node}`);
    world.cutNode(node, random.between(5000, random.chance(0.5) ? 60_000 : 600_000));
  };
  if (random.chance(0.5)) time.after(random.between(1000, 60_000), cutOff);

  const isOver = (): boolean => time.nowMs > CHAOS_MS && course.isOver(plans);
  const isDone = await time.run(END_MS, isOver);
  if (isDone) {
    // What is only late, such as the deletion of a volume, has a little longer.
    const until = time.nowMs + 60_000;
    await time.run(until, () => leaks(world, plans, course).length === 0);
  }
  abort.abort();
  for (const kill of live.values()) kill();
  const problems = [
    ...course.problems,
    ...world.violations,
    ...(isDone ? [] : course.unfinished(plans)),
    ...(isDone ? outcomes(world, plans, course) : []),
    ...(isDone ? leaks(world, plans, course) : []),
  ];
  const counts = new Map([...world.counts, ...course.counts, ['crashes', crashes]]);
  return { problems, ends: course.ends(), virtualMs: time.nowMs, crashes, counts };
}

function traceStore(world: World, tell: (text: string) => void): void {
  const resources: Resource<KubeObject>[] = [
    ...[DATA_UPLOADS, DATA_DOWNLOADS, PODS, PVCS, PVS],
    ...[VOLUME_SNAPSHOTS, VOLUME_SNAPSHOT_CONTENTS],
  ];
  for (const resource of resources) {
    world.store.watch(resource, {}, world.store.version, (type, { metadata, spec, status }) => {
      const { namespace = '', name, annotations, resourceVersion } = metadata;
      const rest = JSON.stringify({ annotations, spec, status });
      tell(`${type} ${resource.kind} ${namespace}/${name} ${resourceVersion} ${rest}`);
    });
  }
}

function tracingLogger(node: string, tell: (text: string) => void): Logger {
  const write = (fields: object, message: string): void => {
    tell(`${node} ${message} ${JSON.stringify(fields)}`);
  };
  return { debug: write, info: write, warn: write, error: write };
}

/** Volumes, snapshots, and CRs that come up at their times; some are canceled or deleted by their users. */
function layOut(world: World, random: Random, time: VirtualTime): Plan[] {
  const plans: Plan[] = [];
  const count = 2 + random.below(4);
  for (let i = 0; i < count; i++) {
    const kind = random.chance(0.6) ? 'upload' : 'download';
    const name = `${kind}-${i}`;
    const content = `content of ${name}`;
    const fate = random.chance(0.15) ? 'canceled' : random.chance(0.1) ? 'deleted' : 'left alone';
    plans.push({ name, kind, content, fate });
    if (kind === 'upload') {
      world.addVolume('app', name, content);
      world.addSnapshot('app', `snap-${name}`, name);
    } else {
      world.addTarget('app', name);
      world.repository.set(`id-${name}`, content);
    }
    const startMs = random.between(0, 60_000);
    time.after(startMs, () => {
      createMovement(world, name, kind);
    });
    const resource = (kind === 'upload' ? DATA_UPLOADS : DATA_DOWNLOADS) as Resource<KubeObject>;
    if (fate === 'left alone') continue;
    time.after(startMs + random.between(0, 60_000), () => {
      if (fate === 'canceled') world.patch(resource, NAMESPACE, name, { spec: { cancel: true } });
      else world.delete(resource, NAMESPACE, name);
    });
  }
  return plans;
}

function createMovement(world: World, name: string, kind: Plan['kind']): void {
  const common = {
    sourceNamespace: 'app',
    backupStorageLocation: 'default',
    operationTimeout: '10m0s',
  };
  const spec =
    kind === 'upload'
      ? {
          ...common,
          snapshotType: 'CSI',
          csiSnapshot: {
            volumeSnapshot: `snap-${name}`,
            storageClass: 'simulated',
            snapshotClass: '',
          },
          sourcePVC: name,
        }
      : {
          ...common,
          targetVolume: { namespace: 'app', pvc: name, pv: '' },
          snapshotID: `id-${name}`,
        };
  const resource = (kind === 'upload' ? DATA_UPLOADS : DATA_DOWNLOADS) as Resource<KubeObject>;
  world.store.create(resource, NAMESPACE, { metadata: { name }, spec } as never);
}

type Movement = Stored & {
  status?: { phase?: string; acceptedByNode?: string; progress?: { bytesDone?: number } };
};

const restartsOf = (movement: Movement | undefined): number =>
  Number(movement?.metadata.annotations?.[RESTARTS] ?? 0);

/** What became of each CR, version by version, and what must not have. */
class Chronicle {
  readonly problems: string[] = [];
  readonly counts = new Map<string, number>();
  readonly last = new Map<string, Movement>();
  readonly #gone = new Set<string>();
  readonly #claims = new Map<string, number>();

  constructor(world: World) {
    for (const resource of [DATA_UPLOADS, DATA_DOWNLOADS] as Resource<KubeObject>[]) {
      world.store.watch(resource, {}, world.store.version, (type, object) => {
        this.#see(object);
        if (type === 'DELETED') this.#gone.add(object.metadata.name);
      });
    }
  }

  #see(movement: Movement): void {
    const { name } = movement.metadata;
    const before = this.last.get(name);
    this.last.set(name, movement);
    const [was, is] = [before?.status?.phase ?? '', movement.status?.phase ?? ''];
    if (FINAL.includes(was) && is !== was) this.problems.push(`${name}: ${was} became ${is}`);
    if (ORDER.indexOf(is) < ORDER.indexOf(was)) {
      this.problems.push(`${name}: went back from ${was} to ${is}`);
    }
    if (was !== 'Accepted' && is === 'Accepted') {
      const claims = (this.#claims.get(name) ?? 0) + 1;
      this.#claims.set(name, claims);
      if (claims > 1) this.problems.push(`${name}: was claimed ${claims} times`);
    }
    const ownerNow = ownerOf(movement as never);
    const ownerBefore = before && ownerOf(before as never);
    if (ownerBefore !== undefined && ownerNow !== ownerBefore) this.#note('changes of the agent');
    if (restartsOf(movement) > restartsOf(before)) this.#note('restarts');
    if (is === 'Completed' && was !== is && movement.kind === 'DataDownload') {
      this.#note('rebinds');
    }
    const bytes = movement.status?.progress?.bytesDone ?? 0;
    const bytesBefore = before?.status?.progress?.bytesDone ?? 0;
    if (bytes < bytesBefore) {
      this.problems.push(`${name}: bytesDone went back from ${bytesBefore} to ${bytes}`);
    }
  }

  #note(what: string): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
  }

  phaseOf(name: string): string {
    return this.last.get(name)?.status?.phase ?? '';
  }

  isGone(name: string): boolean {
    return this.#gone.has(name);
  }

  isOver(plans: readonly Plan[]): boolean {
    return plans.every(({ name, fate }) => this.isGone(name) || this.#isEnded(name, fate));
  }

  #isEnded(name: string, fate: Plan['fate']): boolean {
    const movement = this.last.get(name);
    if (!movement || !FINAL.includes(this.phaseOf(name))) return false;
    return fate !== 'deleted' && (movement.metadata.finalizers ?? []).length === 0;
  }

  unfinished(plans: readonly Plan[]): string[] {
    return plans
      .filter(({ name, fate }) => !this.isGone(name) && !this.#isEnded(name, fate))
      .map(({ name }) => `${name}: not over: ${JSON.stringify(this.last.get(name))}`);
  }

  ends(): Record<string, number> {
    const counts: Record<string, number> = {};
    for (const name of this.last.keys()) {
      const phase = this.phaseOf(name);
      counts[phase] = (counts[phase] ?? 0) + 1;
    }
    return counts;
  }
}

function outcomes(world: World, plans: readonly Plan[], course: Chronicle): string[] {
  return plans.flatMap(({ name, kind, content, fate }) => {
    const phase = course.phaseOf(name);
    const status = (course.last.get(name)?.status ?? {}) as Record<string, unknown>;
    if (fate === 'left alone' && phase !== 'Completed') {
      return [`${name}: ended as ${phase}: ${String(status.message)}`];
    }
    if (kind === 'upload' && world.contentOf('app', name) !== content) {
      return [`${name}: the user's volume is not what it was`];
    }
    if (phase !== 'Completed') return [];
    if (kind === 'upload') {
      const stored = world.repository.get(String(status.snapshotID));
      return stored === content ? [] : [`${name}: stored is ${String(stored)}`];
    }
    const restored = world.contentOf('app', name);
    return restored === content ? [] : [`${name}: restored is ${String(restored)}`];
  });
}

/** What nobody will ever remove. */
function leaks(world: World, plans: readonly Plan[], course: Chronicle): string[] {
  const { store } = world;
  // A snapshot whose upload was deleted before any agent saw it is its maker's still.
  const unseen = new Set(
    plans
      .filter(({ name, fate }) => fate === 'deleted' && course.phaseOf(name) === '')
      .flatMap(({ name }) => [`snap-${name}`, world.contentNameOf('app', `snap-${name}`)]),
  );
  const left = [
    ...store.list(PODS, { namespace: NAMESPACE, labelSelector: '!role' }),
    ...store.list(PVCS, { namespace: NAMESPACE }),
    ...store.list(VOLUME_SNAPSHOTS),
    ...store.list(VOLUME_SNAPSHOT_CONTENTS),
  ]
    .filter(({ metadata }) => !unseen.has(metadata.name))
    .map(({ kind, metadata }) => `left: ${kind ?? ''} ${metadata.name}`);
  const volumes = store.list(PVS) as (Stored & {
    spec?: { claimRef?: { namespace?: string }; persistentVolumeReclaimPolicy?: string };
  })[];
  for (const { metadata, spec } of volumes) {
    if (spec?.claimRef?.namespace !== 'app') left.push(`left: PV ${metadata.name}`);
    if (spec?.persistentVolumeReclaimPolicy !== world.reclaimPolicy) {
      left.push(`PV ${metadata.name} has policy ${String(spec?.persistentVolumeReclaimPolicy)}`);
    }
  }
  if (world.volumes.size !== volumes.length) {
    left.push(`the storage has ${world.volumes.size} volumes, Kubernetes ${volumes.length}`);
  }
  return left;
}
