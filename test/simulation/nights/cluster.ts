import type { Clock } from '../../../src/base/index.ts';
import { invalid } from '../../../src/dev/api-server/api-error.ts';
import { isSameJson, type Store, type Stored } from '../../../src/dev/api-server/store.ts';
import {
  CONFIG_MAPS,
  type KubeObject,
  NAMESPACES,
  PODS,
  PVCS,
  type Resource,
  SCHEDULES,
  SECRETS,
  VOLUME_SNAPSHOT_CLASSES,
} from '../../../src/kube/index.ts';
import type { ForgetSnapshots } from '../../../src/server/index.ts';
import { NAMESPACE } from '../objects.ts';
import { addLocation, servePods } from '../restores/cluster.ts';
import { ACCOUNTS } from '../restores/end.ts';
import type { SharedBucket } from '../servers/bucket.ts';
import type { CourseNotes } from '../servers/course.ts';
import { Crew } from '../servers/crew.ts';
import { type ServerProcess, START_MS } from '../servers/server-process.ts';
import { CALM, Trouble } from '../servers/trouble.ts';
import type { Weather } from '../simulated-client.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';
import { World } from '../world.ts';
import { NightAgent } from './agent.ts';
import { type NightWorld, nightServer } from './server.ts';

export const SPACES = ['app-a', 'app-b'];
export const MAPPED = 'app-c';
export const SCHEDULE = 'nightly';
/** A night lasts a quarter of an hour here. */
const CRON = '*/15 * * * *';
const TURN_MS = 500;

/** A claim of the applications, in the order of their creation. */
export interface Claim {
  readonly namespace: string;
  readonly name: string;
  readonly way: 'moved' | 'files';
  /** A pod has it mounted, so its data is not restored in place. */
  readonly isUsed: boolean;
}

/** Claims in two namespaces. The same random numbers give the same claims. */
export function claimsOf(random: Random): Claim[] {
  return SPACES.flatMap((namespace) => {
    const moved = Array.from({ length: 1 + random.below(2) }, (_, i) => ({
      namespace,
      name: `data-${namespace}-${i}`,
      way: 'moved' as const,
      isUsed: random.chance(0.2),
    }));
    const files = { namespace, name: `files-${namespace}`, way: 'files' as const, isUsed: true };
    return random.chance(0.5) ? [...moved, files] : moved;
  });
}

export interface ClusterOptions {
  readonly name: string;
  readonly time: VirtualTime;
  readonly random: Random;
  readonly bucket: SharedBucket;
  readonly repository: Map<string, string>;
  readonly forget: ForgetSnapshots;
  readonly notes: CourseNotes;
  readonly reclaimPolicy: 'Delete' | 'Retain';
  readonly onStored: (id: string, backup: string) => void;
}

/** A cluster with a Longshore server, an agent, and the location that all clusters share. */
export class Cluster implements NightWorld {
  readonly name: string;
  readonly time: VirtualTime;
  readonly random: Random;
  readonly bucket: SharedBucket;
  readonly clock: Clock;
  readonly store: Store;
  readonly world: World;
  readonly isWriteOnce = false;
  readonly tellsLostCommands = true;
  readonly forget: ForgetSnapshots;
  readonly agent: NightAgent;
  readonly #notes: CourseNotes;
  readonly #crew: Crew;
  #trouble: Trouble | undefined;
  #isOver = false;
  /** The latest time that the clock of its API server has shown. */
  latestMs = 0;

  constructor(options: ClusterOptions) {
    const { name, time, random, bucket, repository, forget, notes, onStored } = options;
    this.name = name;
    this.time = time;
    this.random = random;
    this.bucket = bucket;
    this.forget = forget;
    this.#notes = notes;
    this.clock = {
      nowNs: () =>
        BigInt(Math.round((START_MS + time.nowMs + (this.#trouble?.apiOffsetMs ?? 0)) * 1e6)),
    };
    this.world = new World(time, random, this.clock, {
      nodes: ['node'],
      moverDeath: () => 0,
      moverDeathsMax: 0,
      fenceMs: 40_000,
      reclaimPolicy: options.reclaimPolicy,
    });
    this.store = this.world.store;
    keepSpecs(this.store);
    this.agent = new NightAgent({
      world: this.world,
      repository,
      onStored: (id, { metadata }) => {
        onStored(id, metadata.labels?.['velero.io/backup-name'] ?? '');
      },
    });
    const nothing = { items: [], volumeInfos: [], podVolumeBackups: [], hasBroken: false };
    const nobody = { pods: new Map(), moved: [], failing: new Set<string>() };
    const serving = { world: this.world, backedUp: { ...nothing, ...nobody } };
    servePods(
      {
        ...serving,
        problem: (text) => {
          notes.problem(text);
        },
        note: () => undefined,
        isOrphaned: () => false,
      },
      [...SPACES, MAPPED],
    );
    this.#addOwn();
    this.#crew = new Crew({
      time,
      random,
      notes,
      start: (each) => nightServer(`${name}-${each}`, this),
      isLeadersOwn: (what) => /^(patch (restores|backups)$|exec freeze)/.test(what),
    });
  }

  create(
    resource: Resource<KubeObject>,
    namespace: string | undefined,
    object: object,
  ): KubeObject {
    return this.store.create(resource, namespace, object as Stored);
  }

  /** Creates the initial objects of the servers' namespace. */
  #addOwn(): void {
    this.create(NAMESPACES, undefined, { metadata: { name: NAMESPACE } });
    this.create(PODS, NAMESPACE, {
      metadata: { name: 'agent', labels: { role: 'node-agent' } },
      spec: { nodeName: 'node', containers: [] },
    });
    this.world.patch(PODS, NAMESPACE, 'agent', { status: { phase: 'Running' } });
    this.create(VOLUME_SNAPSHOT_CLASSES, undefined, {
      metadata: { name: 'any' },
      driver: 'csi.simulated',
      deletionPolicy: 'Delete',
    });
    this.create(SECRETS, NAMESPACE, {
      metadata: { name: 'velero-repo-credentials' },
      data: { 'repository-password': btoa(`of ${this.name}`) },
    });
    addLocation(this.world);
  }

  /** Creates applications, a tenant's namespace, and a Schedule that backs all up each night. */
  fill(claims: readonly Claim[]): void {
    for (const name of [...SPACES, 'tenant']) {
      this.create(NAMESPACES, undefined, { metadata: { name } });
      this.create(CONFIG_MAPS, name, { metadata: { name: `map-${name}` }, data: { a: 'b' } });
    }
    for (const claim of claims) {
      this.world.addVolume(claim.namespace, claim.name, 'new');
      this.runPod(claim);
    }
    this.create(SCHEDULES, NAMESPACE, {
      metadata: { name: SCHEDULE },
      spec: {
        schedule: CRON,
        template: { storageLocation: 'default', snapshotMoveData: true, ttl: '4h0m0s' },
      },
      status: { phase: 'Enabled' },
    });
  }

  runPod({ namespace, name, way, isUsed }: Claim): void {
    if (!isUsed || this.store.has(PODS, namespace, `pod-${name}`)) return;
    const annotations = way === 'files' ? { 'backup.velero.io/backup-volumes': 'v' } : {};
    this.create(PODS, namespace, {
      metadata: { name: `pod-${name}`, annotations },
      spec: {
        containers: [{ name: 'c', volumeMounts: [{ name: 'v', mountPath: '/v' }] }],
        volumes: [{ name: 'v', persistentVolumeClaim: { claimName: name } }],
      },
    });
  }

  /** With all objects in it. */
  deleteNamespace(namespace: string): void {
    for (const resource of [PODS, PVCS, CONFIG_MAPS, SECRETS, ACCOUNTS] as Resource<KubeObject>[]) {
      for (const { metadata } of this.store.list(resource, { namespace })) {
        this.store.delete(resource, namespace, metadata.name);
      }
    }
    if (this.store.has(NAMESPACES, undefined, namespace)) {
      this.store.delete(NAMESPACES, undefined, namespace);
    }
  }

  /** Pauses Schedules, as an admin does before a restore into another cluster. */
  pauseSchedules(): void {
    this.store.watch(SCHEDULES, {}, this.store.version, (type, { metadata }) => {
      if (type !== 'ADDED') return;
      this.world.patch(SCHEDULES, NAMESPACE, metadata.name, { spec: { paused: true } });
    });
  }

  start(): void {
    this.#crew.start();
    this.#act();
  }

  /** Starts trouble for its servers and its bucket, for some time. */
  trouble(): void {
    this.#trouble = new Trouble({
      time: this.time,
      random: this.random,
      bucket: this.bucket,
      isCalm: false,
      isThrottling: true,
      fromMs: this.time.nowMs,
      servers: () => this.#crew.servers,
      note: (what) => {
        this.#notes.count(what);
      },
    });
  }

  get isTroubled(): boolean {
    return this.#trouble?.isOver === false;
  }

  stop(): void {
    this.#isOver = true;
    // The bucket belongs to other clusters, too.
    this.#trouble?.end();
    this.#crew.killAll();
  }

  #act(): void {
    if (this.#isOver) return;
    this.#trouble?.act();
    this.latestMs = Math.max(this.latestMs, Number(this.clock.nowNs() / 1_000_000n));
    this.time.after(TURN_MS, () => {
      this.#act();
    });
  }

  get weather(): Weather {
    return this.#trouble?.weather ?? CALM;
  }

  say(line: string): void {
    this.#notes.say(line);
  }

  onTurn(server: ServerProcess, what: string): boolean {
    if (!server.isLeading || / (leases|events)(: done)?$|^watch /.test(what)) return false;
    this.say(`${server.name}: ${what}`);
    if (!this.isTroubled || this.#trouble?.kills() !== true) return false;
    this.#notes.count('kills of servers');
    this.#crew.replace(server);
    return true;
  }

  onEnd(server: ServerProcess, error: unknown): void {
    if (!this.#isOver) this.#crew.ended(server, error);
  }

  onWrite(server: ServerProcess, what: string): void {
    this.#crew.checkWrite(server, what);
  }

  onTake(): void {
    // This simulation does not check repeated hooks.
  }

  onExec(): () => void {
    return () => undefined;
  }
}

/** An API server keeps specs on status updates, and the store does not. */
function keepSpecs(store: Store): void {
  const update = store.update.bind(store);
  store.update = (resource, object, part) => {
    const { namespace, name } = object.metadata;
    const isKept = [PVCS.plural, PODS.plural].includes(resource.plural);
    const isBound = ({ spec }: Stored): boolean => {
      const { volumeName, nodeName } = spec as { volumeName?: string; nodeName?: string };
      return volumeName !== undefined || nodeName !== undefined;
    };
    if (isKept && part === undefined) {
      const before = store.get(resource, namespace, name);
      const fixed = ({ spec }: Stored): object => ({ ...(spec as object), resources: undefined });
      if (isBound(before) && !isSameJson(fixed(before), fixed(object))) {
        throw invalid(resource, name, 'spec', 'Forbidden: spec is immutable once it is bound');
      }
    }
    return update(resource, object, part);
  };
}
