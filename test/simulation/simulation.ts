import { Agent } from '../../src/agent/index.ts';
import { EXPOSING_LABEL, ownerOf, RESTARTS } from '../../src/agent/movement.ts';
import { type Clock, type Logger, silentLogger } from '../../src/base/index.ts';
import type { Stored } from '../../src/dev/api-server/store.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
  PVS,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  type VolumeSnapshotContent,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { Absences } from './absences.ts';
import { APP, DIRECTORY } from './client-pods.ts';
import { layOutPods, type PodPlan } from './pod-plans.ts';
import { SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';
import { NAMESPACE } from './objects.ts';
import { World } from './world.ts';

const START_MS = Date.UTC(2026, 0, 1);
const CHAOS_MS = 120_000;
/** Time-outs, takeovers and retries all end well before. */
const END_MS = 2 * 3_600_000;
const FENCE_MS = 40_000;
const CONCURRENCY_MAX = 2;
const TAKEOVER_MS = 60_000;
/** An agent counts as away a little before it is, and a little longer. */
const AWAY_MS = TAKEOVER_MS - 15_000;
const FINAL = ['Completed', 'Failed', 'Canceled'];
const ORDER = ['', 'New', 'Accepted', 'Prepared', 'InProgress', 'Canceling', ...FINAL];
/** The weather of a node that is cut off. */
const CUT: Weather = { refused: 1, lost: 0, cut: 1, latencyMs: 1000, watchLagMs: 20 };
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 20 };

interface Plan {
  readonly name: string;
  readonly kind: 'upload' | 'download';
  /** The content of the volume before a backup or after a restore. */
  readonly content: string;
  fate: Fate;
}

type Fate = PodPlan['fate'];
/** All four kinds share their counts and limits. */
const MOVEMENTS = [
  DATA_UPLOADS,
  DATA_DOWNLOADS,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
] as unknown as readonly Resource<KubeObject>[];

export interface Course {
  readonly problems: string[];
  /** Number of CRs by final phase. */
  readonly ends: Record<string, number>;
  readonly virtualMs: number;
  readonly crashes: number;
  /** Counts of events. */
  readonly counts: ReadonlyMap<string, number>;
}

/**
 * Runs one course: some agents, some volumes to move, and two minutes of trouble and crashes before
 * calm. `trace` gets every change and log line. For `fullMs`, the API server refuses writes.
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
  const concurrency = 1 + random.below(CONCURRENCY_MAX);
  const prepareQueueLength = random.chance(0.2) ? 1 + random.below(2) : 0;
  const roomRandom = new Random(seed + 2_000_000);
  const world = new World(time, random, clock, {
    nodes,
    moverDeath: () => (time.nowMs < CHAOS_MS ? 0.3 : 0),
    moverDeathsMax: 2,
    fenceMs: FENCE_MS,
    reclaimPolicy,
    ...(roomRandom.chance(0.3) && { podsMax: 2 + roomRandom.below(2) }),
    isFull: () => weather().isFull === true,
  });
  const absences = new Absences(() => time.nowMs);
  const frozenUntilMs = new Map<string, number>();
  const course = new Chronicle(world, time, {
    concurrency,
    prepareQueueLength,
    isBehind: (node) =>
      absences.isAway(node, HEARD_MS) ||
      time.nowMs < (frozenUntilMs.get(node) ?? -HEARD_MS) + HEARD_MS,
  });
  const tell =
    trace &&
    ((text: string) => {
      trace(`${(time.nowMs / 1000).toFixed(3)} ${text}`);
    });
  if (tell) traceStore(world, tell);
  const plans = layOut(world, random, time);
  const podPlans = layOutPods(world, random, time, nodes);
  const abort = new AbortController();
  let crashes = 0;

  const startAgent = (node: string): (() => void) => {
    const here = (): Weather => ({
      ...(world.cutNodes.has(node) ? CUT : weather()),
      frozenMs: Math.max(0, (frozenUntilMs.get(node) ?? 0) - time.nowMs),
    });
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
      concurrency,
      servesPodVolumes: true,
      prepareTimeoutMs: 900_000,
      restartsMax: 5,
      stallTimeoutMs: 900_000,
      takeoverMs: TAKEOVER_MS,
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
    absences.begin(node);
    kill();
    if (random.chance(0.1) && world.deadNodes.size < nodes.length - 1) {
      world.loseNode(node);
      return;
    }
    const isLong = random.chance(0.2);
    time.after(isLong ? random.between(70_000, 150_000) : random.between(500, 15_000), () => {
      live.set(node, startAgent(node));
      absences.end(node);
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
    const forMs = random.between(5000, random.chance(0.5) ? 60_000 : 600_000);
    world.cutNode(node, forMs);
    absences.begin(node);
    time.after(forMs, () => {
      absences.end(node);
    });
  };
  if (random.chance(0.5)) time.after(random.between(1000, 60_000), cutOff);

  const freeze = (): void => {
    if (time.nowMs > CHAOS_MS) return;
    time.after(random.between(20_000, 90_000), freeze);
    const node = nodes[random.below(nodes.length)] ?? '';
    tell?.(`FREEZE ${node}`);
    world.note('agents frozen');
    frozenUntilMs.set(
      node,
      time.nowMs + random.between(2000, random.chance(0.5) ? 20_000 : 100_000),
    );
  };
  if (random.chance(0.3)) time.after(random.between(1000, 60_000), freeze);

  const all = [...plans, ...podPlans];
  const isOver = (): boolean => time.nowMs > CHAOS_MS && course.isOver(all);
  const isDone = await time.run(END_MS, isOver);
  if (isDone) {
    // Late actions, such as the deletion of a volume, get more time.
    const until = time.nowMs + 60_000;
    await time.run(until, () => leaks(world, plans, course).length === 0);
  }
  abort.abort();
  for (const kill of live.values()) kill();
  const problems = [
    ...course.problems,
    ...world.violations,
    ...(isDone ? [] : course.unfinished(all)),
    ...(isDone ? outcomes(world, plans, course) : []),
    ...(isDone ? podOutcomes(world, podPlans, course, absences) : []),
    ...(isDone ? leaks(world, plans, course) : []),
  ];
  const counts = new Map([...world.counts, ...course.counts, ['crashes', crashes]]);
  return { problems, ends: course.ends(), virtualMs: time.nowMs, crashes, counts };
}

function traceStore(world: World, tell: (text: string) => void): void {
  const resources: Resource<KubeObject>[] = [
    ...MOVEMENTS,
    ...[PODS, PVCS, PVS],
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

/** Creates volumes, snapshots and CRs at their times. Users cancel or delete some of them. */
function layOut(world: World, random: Random, time: VirtualTime): Plan[] {
  const plans: Plan[] = [];
  const count = 1 + random.below(4);
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

type Fated = Pick<Plan, 'name' | 'fate'>;

interface Limits {
  /** Concurrent data paths on a node. */
  readonly concurrency: number;
  /** CRs that are prepared at once; 0 for any number. */
  readonly prepareQueueLength: number;
  /** Whether the agent of a node may not have seen the changes of the others. */
  readonly isBehind: (node: string) => boolean;
}

/** By then all connected agents have seen a claim. */
const HEARD_MS = 30_000;

/** Records each version of each CR, and checks its transitions. */
class Chronicle {
  readonly problems: string[] = [];
  readonly counts = new Map<string, number>();
  readonly last = new Map<string, Movement>();
  readonly #gone = new Set<string>();
  readonly #claims = new Map<string, number>();
  /** When the exposure of its volume began, by name. */
  readonly #exposingSinceMs = new Map<string, number>();
  readonly #first = new Map<string, Movement>();
  /** When another agent took it over, by name. */
  readonly #ownedSinceMs = new Map<string, number>();
  readonly #world: World;
  readonly #time: VirtualTime;
  readonly #limits: Limits;

  constructor(world: World, time: VirtualTime, limits: Limits) {
    this.#world = world;
    this.#time = time;
    this.#limits = limits;
    for (const resource of MOVEMENTS) {
      world.store.watch(resource, {}, world.store.version, (type, object) => {
        this.#see(object);
        if (type !== 'DELETED') return;
        this.#gone.add(object.metadata.name);
        this.#exposingSinceMs.delete(object.metadata.name);
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
    if (!before) this.#first.set(name, movement);
    this.#checkKept(movement);
    this.#checkLimits(movement, was, is);
    if (before && was !== 'Accepted' && is === 'Accepted') {
      const claims = (this.#claims.get(name) ?? 0) + 1;
      this.#claims.set(name, claims);
      if (claims > 1) this.problems.push(`${name}: was claimed ${claims} times`);
    }
    const ownerNow = ownerOf(movement as never);
    const ownerBefore = before && ownerOf(before as never);
    if (ownerBefore !== undefined && ownerNow !== ownerBefore) {
      this.#note('changes of the agent');
      this.#ownedSinceMs.set(name, this.#time.nowMs);
    }
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

  /** Foreign fields must stay, and temporary fields must be removed in time. */
  #checkKept({ metadata, status }: Movement): void {
    const { name, labels = {}, annotations = {}, ownerReferences } = metadata;
    const first = this.#first.get(name)?.metadata;
    const isKept =
      Object.entries(first?.labels ?? {}).every(([key, value]) => labels[key] === value) &&
      Object.entries(first?.annotations ?? {}).every(
        ([key, value]) => annotations[key] === value,
      ) &&
      JSON.stringify(ownerReferences) === JSON.stringify(first?.ownerReferences);
    if (!isKept) this.problems.push(`${name}: lost what others wrote: ${JSON.stringify(metadata)}`);
    if (FINAL.includes(status?.phase ?? '') && labels[EXPOSING_LABEL] !== undefined) {
      this.problems.push(`${name}: is ${String(status?.phase)} and labelled as being exposed`);
    }
  }

  #checkLimits(movement: Movement, was: string, is: string): void {
    const { name } = movement.metadata;
    const { concurrency, prepareQueueLength } = this.#limits;
    const nowMs = this.#time.nowMs;
    const isExposing =
      movement.metadata.labels?.[EXPOSING_LABEL] === 'true' && !this.#gone.has(name);
    if (isExposing && !this.#exposingSinceMs.has(name)) {
      const others = [...this.#exposingSinceMs.values()].filter((ms) => nowMs - ms > HEARD_MS);
      const isBehind = this.#limits.isBehind(ownerOf(movement as never) ?? '');
      if (!isBehind && prepareQueueLength > 0 && others.length >= prepareQueueLength) {
        this.problems.push(`${name}: was claimed as number ${others.length + 1}`);
      }
      if (prepareQueueLength > 0 && others.length === 0) this.#note('claims with a queue length');
      this.#exposingSinceMs.set(name, nowMs);
    }
    if (!isExposing) this.#exposingSinceMs.delete(name);
    if (was !== 'Prepared' || is !== 'InProgress') return;
    const node = ownerOf(movement as never);
    const busy = [...this.last.values()].filter(
      (other) =>
        ['InProgress', 'Canceling'].includes(other.status?.phase ?? '') &&
        !this.#gone.has(other.metadata.name) &&
        ownerOf(other as never) === node &&
        // A restarted data mover continues on its new node, next to the agent's own.
        (restartsOf(other) === 0 ||
          this.#time.nowMs - (this.#ownedSinceMs.get(other.metadata.name) ?? 0) > HEARD_MS / 3) &&
        (other === movement || this.#world.movers.isMoving(other.metadata.name, node ?? '')),
    );
    if (busy.length > concurrency) {
      const names = busy.map((other) => other.metadata.name).join(', ');
      this.problems.push(`${name}: node ${String(node)} moves more than it may: ${names}`);
    }
    if (new Set(busy.map(({ kind }) => kind)).size > 1) this.#note('places shared by kinds');
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

  isOver(plans: readonly Fated[]): boolean {
    return plans.every(({ name, fate }) => this.isGone(name) || this.#isEnded(name, fate));
  }

  #isEnded(name: string, fate: Plan['fate']): boolean {
    const movement = this.last.get(name);
    if (!movement || !FINAL.includes(this.phaseOf(name))) return false;
    return fate !== 'deleted' && (movement.metadata.finalizers ?? []).length === 0;
  }

  unfinished(plans: readonly Fated[]): string[] {
    return plans
      .filter(({ name, fate }) => !this.isGone(name) && !this.#isEnded(name, fate))
      .map(({ name }) => `${name}: not over: ${JSON.stringify(this.last.get(name))}`);
  }

  /** The phase at its creation. */
  first(name: string): string {
    return this.#first.get(name)?.status?.phase ?? '';
  }

  noteEnd(kind: string, phase: string): void {
    this.#note(`pod ${kind}s ${phase}`);
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

/** Shorter than the prepare time-out by more than the pause between two tries. */
const CROWDED_MS = 700_000;

/** Hanging movers filled its node until the time-out. */
const isCrowdedOut = ({ refusedMs }: World, name: string, message: unknown): boolean =>
  String(message).includes('has no room for the pod') && (refusedMs.get(name) ?? 0) > CROWDED_MS;

function outcomes(world: World, plans: readonly Plan[], course: Chronicle): string[] {
  return plans.flatMap(({ name, kind, content, fate }) => {
    const phase = course.phaseOf(name);
    const status = (course.last.get(name)?.status ?? {}) as Record<string, unknown>;
    if (fate === 'left alone' && phase !== 'Completed') {
      if (isCrowdedOut(world, name, status.message)) return [];
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

/** For volumes of pods: undisturbed CRs are Completed, and only canceled CRs are Canceled. */
function podOutcomes(
  world: World,
  plans: readonly PodPlan[],
  course: Chronicle,
  absences: Absences,
): string[] {
  const marked = [...world.movers.marked.keys()]
    .filter((name) => course.phaseOf(name) !== 'Completed' && !world.movers.unheard.has(name))
    .map((name) => `${name}: has its mark, and is ${course.phaseOf(name)}`);
  return [...marked, ...plans.flatMap((plan) => podProblems(world, plan, course, absences))];
}

function podProblems(
  world: World,
  { name, kind, content, fate, isNever, of }: PodPlan,
  course: Chronicle,
  absences: Absences,
): string[] {
  const phase = course.phaseOf(name);
  const { spec, status = {} } = (course.last.get(name) ?? {}) as {
    spec?: { node?: string; pod: { uid: string } };
    status?: Record<string, unknown>;
  };
  const { message = '' } = status as { message?: string };
  course.noteEnd(kind, phase);
  if (phase === 'Canceled' && fate === 'left alone') return [`${name}: nobody canceled it`];
  if (phase === 'Failed' && message === '') return [`${name}: failed without a reason`];
  if (isNever === true) {
    return phase === 'Completed' && course.first(name) !== 'Completed'
      ? [`${name}: was never to be done`]
      : [];
  }
  if (fate === 'left alone' && phase === 'Failed') {
    const node = spec?.node ?? of.node() ?? '';
    const isAgentless =
      message.includes('has no node-agent') &&
      (absences.longestMs(node) > AWAY_MS || world.deadNodes.has(node));
    const isDisturbed = of.uid !== undefined && world.clientPods.disturbed.has(of.uid);
    if (isCrowdedOut(world, name, message) || isForgotten(world, name, message)) return [];
    if (!isAgentless && !isDisturbed) return [`${name}: ended as Failed: ${message}`];
    course.noteEnd(kind, isAgentless ? 'agentless' : 'disturbed');
  }
  if (phase !== 'Completed') return [];
  if (kind === 'backup') {
    const id = String(status.snapshotID);
    if (world.repository.get(id) !== content) {
      return [`${name}: stored is ${String(world.repository.get(id))}`];
    }
    return world.movers.sources.get(id) === spec?.pod.uid ? [] : [`${name}: another pod was read`];
  }
  const handle = world.movers.marked.get(name) ?? world.movers.noted.get(name);
  if (handle === undefined) return [`${name}: is completed without its mark`];
  // A directory is deleted with its pod.
  const restored = world.volumes.get(handle);
  const isGone = restored === undefined && handle.startsWith(DIRECTORY);
  return restored === content || isGone ? [] : [`${name}: restored is ${String(restored)}`];
}

/**
 * A short Job takes its directory and the mark with it. If no agent of its node saw it, and the
 * mover could not report the end, the restored data cannot be proven any more.
 */
const isForgotten = ({ movers }: World, name: string, message: string): boolean =>
  message.includes('does not exist any more') &&
  movers.unheard.has(name) &&
  movers.marked.get(name)?.startsWith(DIRECTORY) === true;

/** Objects that will never be removed. */
function leaks(world: World, plans: readonly Plan[], course: Chronicle): string[] {
  const { store } = world;
  // If an upload was deleted before any agent saw it, the snapshot still belongs to its creator.
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
    if (spec?.claimRef?.namespace !== APP) left.push(`left: PV ${metadata.name}`);
    if (spec?.persistentVolumeReclaimPolicy !== world.reclaimPolicy) {
      left.push(`PV ${metadata.name} has policy ${String(spec?.persistentVolumeReclaimPolicy)}`);
    }
  }
  const handles = [...world.volumes.keys()].filter((handle) => !handle.startsWith(DIRECTORY));
  if (handles.length !== volumes.length) {
    left.push(`the storage has ${handles.length} volumes, Kubernetes ${volumes.length}`);
  }
  const contents = store.list(VOLUME_SNAPSHOT_CONTENTS) as unknown as VolumeSnapshotContent[];
  const told = new Set(contents.map(({ status }) => status?.snapshotHandle));
  const nobodys = [...world.snapshots.keys()].filter((handle) => !told.has(handle));
  return [...left, ...nobodys.map((handle) => `left in the storage: ${handle}`)];
}
