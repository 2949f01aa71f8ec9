import {
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  type Resource,
} from '../../src/kube/index.ts';
import { APP, type ClientPod } from './client-pods.ts';
import { NAMESPACE } from './objects.ts';
import type { Random, VirtualTime } from './virtual-time.ts';
import type { World } from './world.ts';

const BACKUPS = POD_VOLUME_BACKUPS as Resource<KubeObject>;
const RESTORES = POD_VOLUME_RESTORES as Resource<KubeObject>;
const FINALIZER = 'velero.io/pod-volume-finalizer';
const RESTORE_UID = 'restore-uid';
/** The server makes no CRs for pods that do not run. */
const COMES_UP_MS = 500;

/** A volume of a pod that is to be moved. */
export interface PodPlan {
  readonly name: string;
  readonly kind: 'backup' | 'restore';
  /** The content of the volume before a backup or after a restore. */
  readonly content: string;
  readonly fate: 'left alone' | 'canceled' | 'deleted';
  /** The CR belongs to another cluster or agent: its data is never moved. */
  readonly isNever?: boolean;
  /** Its snapshot is not in Kopia's format. */
  readonly isRestic?: boolean;
  readonly of: PlannedPod;
}

/** The UID is set when the pod is created. */
interface PlannedPod {
  uid: string | undefined;
  /** The node of the pod while it exists. */
  node(): string | undefined;
}

/** Pods with volumes, their PodVolumeBackups and PodVolumeRestores, and events for both. */
export function layOutPods(
  world: World,
  random: Random,
  time: VirtualTime,
  nodes: readonly string[],
): PodPlan[] {
  const plans: PodPlan[] = [];
  const count = random.below(4);
  for (let i = 0; i < count; i++) {
    const kind = random.chance(0.5) ? 'backup' : 'restore';
    const plan = new PodCourse(world, random, time, kind, i);
    plans.push(...plan.plans);
  }
  if (random.chance(0.3)) plans.push(foreign(world, random, time, nodes));
  return plans;
}

/** A pod with one or two volumes, each with a CR. */
class PodCourse {
  readonly plans: PodPlan[] = [];
  readonly #world: World;
  readonly #random: Random;
  readonly #time: VirtualTime;
  readonly #kind: 'backup' | 'restore';
  readonly #pod: ClientPod;
  readonly #planned: PlannedPod;

  constructor(
    world: World,
    random: Random,
    time: VirtualTime,
    kind: 'backup' | 'restore',
    i: number,
  ) {
    this.#world = world;
    this.#random = random;
    this.#time = time;
    this.#kind = kind;
    const isRestore = kind === 'restore';
    let node: string | undefined;
    this.#planned = {
      uid: undefined,
      node: () => {
        const pod = world.find(PODS, this.#pod.name, APP);
        if (pod?.metadata.uid === this.#planned.uid)
          node = pod?.spec.nodeName as string | undefined;
        return node;
      },
    };
    const volumes = Array.from({ length: 1 + random.below(2) }, (_, j) => {
      const name = `pod-${kind}-${i}-${j}`;
      const content = `content of ${name}`;
      const isDirectory = random.chance(0.4);
      const before = isRestore ? '' : content;
      if (!isDirectory) world.addVolume(APP, name, before);
      if (isRestore) world.repository.set(`id-${name}`, content);
      const fate = random.chance(0.12)
        ? 'canceled'
        : random.chance(0.08)
          ? 'deleted'
          : 'left alone';
      const isRestic = random.chance(0.05);
      this.plans.push({
        name,
        kind,
        content,
        fate,
        of: this.#planned,
        isRestic,
        isNever: isRestic,
      });
      return { name, ...(isDirectory && { directory: before }) };
    });
    this.#pod = {
      name: `${kind}-pod-${i}`,
      volumes,
      unscheduledMs: random.chance(0.3) ? random.between(0, 90_000) : 0,
      ...(isRestore && { waitsFor: RESTORE_UID, isBrief: random.chance(0.3) }),
    };
    time.after(random.between(0, 60_000), () => {
      this.#planned.uid = world.clientPods.add(this.#pod);
      this.#begin();
    });
  }

  /** The server makes the CRs of a restore at once, and those of a backup when the pod runs. */
  #begin(): void {
    const { uid = '' } = this.#planned;
    const pod = this.#world.find(PODS, this.#pod.name, APP);
    const isThere = pod?.metadata.uid === uid;
    const isReady = this.#kind === 'restore' || pod?.status?.phase === 'Running';
    if (isThere && !isReady) {
      this.#time.after(COMES_UP_MS, () => {
        this.#begin();
      });
      return;
    }
    const node = (pod?.spec.nodeName as string | undefined) ?? 'gone';
    for (const plan of this.plans) {
      this.#time.after(this.#random.between(0, 10_000), () => {
        create(this.#world, plan, { uid, name: this.#pod.name, node });
      });
      this.#befall(plan);
    }
    this.#disturb(uid);
  }

  #befall({ name, fate }: PodPlan): void {
    if (fate === 'left alone') return;
    const resource = this.#kind === 'backup' ? BACKUPS : RESTORES;
    this.#time.after(10_000 + this.#random.between(0, 60_000), () => {
      if (fate === 'canceled') {
        this.#world.patch(resource, NAMESPACE, name, { spec: { cancel: true } });
      } else this.#world.delete(resource, NAMESPACE, name);
    });
  }

  #disturb(uid: string): void {
    if (!this.#random.chance(0.3)) return;
    const { clientPods } = this.#world;
    this.#time.after(this.#random.between(0, 60_000), () => {
      const what = this.#random.below(3);
      if (what === 0) clientPods.evict(uid);
      else if (what === 1) clientPods.remove(uid);
      else clientPods.remove(uid, this.#successor());
    });
  }

  /** The new pod of its controller: the same claims, and new directories. */
  #successor(): ClientPod {
    const { name } = this.#pod;
    const volumes = this.#pod.volumes.map((volume) =>
      volume.directory === undefined ? volume : { ...volume, directory: 'of another pod' },
    );
    return { name, volumes, unscheduledMs: 0 };
  }
}

interface Of {
  readonly uid: string;
  readonly name: string;
  readonly node: string;
}

interface Synced {
  readonly finalizers?: readonly string[];
  readonly status?: object;
}

function create(
  world: World,
  { name, kind, isRestic = false }: PodPlan,
  { uid, name: pod, node }: Of,
  { finalizers, status }: Synced = {},
): void {
  const isBackup = kind === 'backup';
  world.store.create(isBackup ? BACKUPS : RESTORES, NAMESPACE, {
    metadata: {
      name,
      labels: { 'velero.io/backup-uid': 'b', 'velero.io/pod-uid': uid },
      annotations: { 'velero.io/pvc-name': name },
      ownerReferences: [
        {
          apiVersion: 'velero.io/v1',
          kind: isBackup ? 'Backup' : 'Restore',
          name: 'r',
          uid: RESTORE_UID,
          controller: true,
        },
      ],
      ...(finalizers && { finalizers }),
    },
    spec: {
      pod: { kind: 'Pod', namespace: APP, name: pod, uid },
      volume: name,
      backupStorageLocation: 'default',
      repoIdentifier: '',
      uploaderType: isRestic ? 'restic' : 'kopia',
      ...(isBackup ? { node } : { snapshotID: `id-${name}`, sourceNamespace: APP }),
    },
    ...(status && { status }),
  } as never);
}

/** CRs of another cluster with the same names of nodes and pods. Some never end. */
function foreign(
  world: World,
  random: Random,
  time: VirtualTime,
  nodes: readonly string[],
): PodPlan {
  const name = 'synced';
  const isThere = random.chance(0.5);
  const phases = ['', 'New', 'Accepted', 'Prepared', 'InProgress', 'Completed', 'Failed'];
  const phase = phases[random.below(phases.length)] ?? '';
  const finalizers = random.chance(0.7) ? [FINALIZER] : [];
  const startMs = random.between(0, 60_000);
  const of = { uid: 'of-another-cluster', node: () => undefined };
  const plan: PodPlan = {
    name,
    kind: 'backup',
    content: '',
    fate: 'left alone',
    isNever: true,
    of,
  };
  if (isThere) {
    time.after(startMs, () => {
      world.clientPods.add({
        name: 'synced-pod',
        volumes: [{ name, directory: 'not of the pod that was backed up' }],
        unscheduledMs: 0,
      });
    });
  }
  time.after(startMs + random.between(0, 30_000), () => {
    const node = nodes[random.below(nodes.length)] ?? '';
    const found = world.find(PODS, 'synced-pod', APP)?.spec.nodeName as string | undefined;
    create(
      world,
      plan,
      { uid: 'of-another-cluster', name: 'synced-pod', node: found ?? node },
      {
        finalizers,
        status: { ...(phase !== '' && { phase }), message: 'as it was' },
      },
    );
  });
  return plan;
}
