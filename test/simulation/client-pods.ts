import type { Store, Stored } from '../../src/dev/api-server/store.ts';
import { type KubeObject, PODS, PVCS, PVS, type Resource } from '../../src/kube/index.ts';
import { type Loose, volumeHandle } from './objects.ts';
import type { Random } from './virtual-time.ts';

export const APP = 'app';
/** Finalizer of terminating pods until their kubelet has ended them. */
export const KUBELET = 'simulation/kubelet';
/** The kubelet's directory of pods, as in the DaemonSet. */
export const KUBELET_PODS = '/var/lib/kubelet/pods';
/** Prefix of handles of volumes that are a directory of their pod. */
export const DIRECTORY = 'directory-';
const WAIT = 'restore-wait';

export interface ClientVolume {
  readonly name: string;
  /** Initial content of a directory volume. Without it, a PVC of the same name is the volume. */
  readonly directory?: string;
}

export interface ClientPod {
  readonly name: string;
  readonly volumes: readonly ClientVolume[];
  /** UID of the Restore whose marks the pod waits for. Without it, the pod starts at once. */
  readonly waitsFor?: string;
  /** A Job that ends right after its start. */
  readonly isBrief?: boolean;
  /** How long the pod has no node. */
  readonly unscheduledMs: number;
}

/** A mounted volume of a pod. */
export interface Mount {
  readonly handle: string;
  readonly pod: string;
  readonly node: string;
}

/** The world of client pods. */
export interface ClientWorld {
  readonly store: Store;
  readonly volumes: Map<string, string>;
  readonly deadNodes: ReadonlySet<string>;
  readonly cutNodes: ReadonlySet<string>;
  find(resource: Resource<KubeObject>, name: string, namespace?: string): Loose | undefined;
  patch(
    resource: Resource<KubeObject>,
    namespace: string | undefined,
    name: string,
    patch: object,
  ): void;
  delete(resource: Resource<KubeObject>, namespace: string, name: string): void;
  /** Runs after a time between the two, once the API server accepts writes. */
  after(lowMs: number, highMs: number, run: () => void): void;
  note(what: string): void;
}

/** Pods of users with their kubelets, which mount volumes before the start until after the end. */
export class ClientPods {
  readonly #world: ClientWorld;
  readonly #random: Random;
  readonly #nodes: readonly string[];
  /** Keyed by node and path. */
  readonly #mounts = new Map<string, Mount>();
  readonly #plans = new Map<string, ClientPod>();
  /** UIDs of Restores whose marks are in a volume, by its handle. */
  readonly #marks = new Map<string, Set<string>>();
  /** UIDs of pods whose own containers have started. */
  readonly #started = new Set<string>();
  /** UIDs of pods that were deleted or evicted, or whose node was lost. */
  readonly disturbed = new Set<string>();
  #count = 0;

  constructor(world: ClientWorld, random: Random, nodes: readonly string[]) {
    this.#world = world;
    this.#random = random;
    this.#nodes = nodes;
  }

  /** Returns the pod's UID. */
  add(plan: ClientPod): string {
    const { name, volumes, waitsFor } = plan;
    const init = this.#random.chance(0.3) ? [{ name: 'first' }, { name: WAIT }] : [{ name: WAIT }];
    const { metadata } = this.#world.store.create(PODS, APP, {
      metadata: {
        name,
        labels: { app: 'yes', ...(waitsFor !== undefined && { 'velero.io/restore-name': 'r' }) },
      },
      spec: {
        containers: [{ name: 'app' }],
        ...(waitsFor !== undefined && { initContainers: init }),
        volumes: volumes.map(({ name: volume, directory }) =>
          directory === undefined
            ? { name: volume, persistentVolumeClaim: { claimName: volume } }
            : { name: volume, emptyDir: {} },
        ),
      },
    } as never);
    this.#plans.set(metadata.uid, plan);
    this.#world.patch(PODS, APP, name, { status: { phase: 'Pending' } });
    this.#world.after(plan.unscheduledMs, plan.unscheduledMs + 1000, () => {
      this.#schedule(metadata.uid);
    });
    return metadata.uid;
  }

  /** The volume that is mounted at a path of a node. */
  mountAt(node: string, path: string): Mount | undefined {
    return this.#mounts.get(`${node}:${path}`);
  }

  /** The UID of the pod that owns a path. */
  ownerOf(path: string): string | undefined {
    return path.slice(KUBELET_PODS.length + 1).split('/')[0];
  }

  hasStarted(uid: string): boolean {
    return this.#started.has(uid);
  }

  hasMark(handle: string, restore: string): boolean {
    return this.#marks.get(handle)?.has(restore) === true;
  }

  clearMarks(handle: string): void {
    this.#marks.delete(handle);
  }

  /** Marks a volume as restored. Its pod notices within a second. */
  mark({ handle, pod }: Mount, restore: string): void {
    this.#marks.set(handle, new Set([restore]));
    this.#world.after(100, 1100, () => {
      this.#look(pod);
    });
  }

  /** Deletes the pod. `successor`: a pod of the same name that follows it. */
  remove(uid: string, successor?: ClientPod): void {
    this.disturbed.add(uid);
    const pod = this.#podOf(uid);
    if (pod) this.#end(pod);
    if (successor) this.#replace(successor);
  }

  /** Evicts the pod: it has failed and is not deleted. */
  evict(uid: string): void {
    this.disturbed.add(uid);
    const pod = this.#podOf(uid);
    const node = pod?.spec.nodeName as string | undefined;
    if (node === undefined || this.#isOut(node)) return;
    this.#world.note('client pods evicted');
    const isUnmountedFirst = this.#random.chance(0.5);
    if (isUnmountedFirst) this.#unmount(uid);
    this.#world.after(0, 2000, () => {
      this.#unmount(uid);
      this.#tell(uid, { phase: 'Failed', reason: 'Evicted' });
    });
  }

  /** Ends all pods of a node. */
  evictFrom(node: string): void {
    for (const pod of this.#podsOf(node)) {
      this.disturbed.add(pod.metadata.uid);
      this.#end(pod);
    }
  }

  /** Deletes the pods without an answer from their node. */
  forceDeleteFrom(node: string): void {
    for (const { metadata } of this.#podsOf(node)) {
      this.disturbed.add(metadata.uid);
      this.#world.patch(PODS, APP, metadata.name, { metadata: { finalizers: null } });
      this.#world.delete(PODS, APP, metadata.name);
    }
  }

  /** The node is back: its kubelet ends terminating and deleted pods. */
  nodeIsBack(node: string): void {
    for (const { metadata } of this.#podsOf(node)) this.#finish(metadata.uid);
    for (const { pod, node: on } of [...this.#mounts.values()]) {
      if (on === node && !this.#podOf(pod)) this.#world.after(300, 3000, () => this.#unmount(pod));
    }
  }

  #podsOf(node: string): Loose[] {
    return this.#world.store
      .list(PODS, { namespace: APP })
      .map((pod) => pod as unknown as Loose)
      .filter(({ spec }) => spec.nodeName === node);
  }

  #podOf(uid: string): Loose | undefined {
    const pod = this.#world.find(PODS, this.#plans.get(uid)?.name ?? '', APP);
    return pod?.metadata.uid === uid ? pod : undefined;
  }

  #isOut(node: string): boolean {
    return this.#world.deadNodes.has(node) || this.#world.cutNodes.has(node);
  }

  #again(run: () => void): void {
    this.#world.after(300, 1500, run);
  }

  #schedule(uid: string): void {
    const pod = this.#podOf(uid);
    if (!pod || pod.metadata.deletionTimestamp !== undefined) return;
    const nodes = this.#nodes.filter((node) => !this.#isOut(node));
    const node = nodes[this.#random.below(nodes.length)];
    if (node === undefined || this.#handlesOf(uid) === undefined) {
      this.#again(() => {
        this.#schedule(uid);
      });
      return;
    }
    this.#world.patch(PODS, APP, pod.metadata.name, { spec: { nodeName: node } });
    this.#again(() => {
      this.#start(uid, node);
    });
  }

  /** Volumes of claims by their names in the pod; undefined while a claim is unbound. */
  #handlesOf(uid: string): Map<string, { handle: string; volume: string }> | undefined {
    const handles = new Map<string, { handle: string; volume: string }>();
    for (const { name, directory } of this.#plans.get(uid)?.volumes ?? []) {
      if (directory !== undefined) continue;
      const claim = this.#world.find(PVCS, name, APP);
      const volume = this.#world.find(PVS, String(claim?.spec.volumeName));
      if (claim?.status?.phase !== 'Bound' || !volume) return undefined;
      handles.set(name, { handle: volumeHandle(volume), volume: volume.metadata.name });
    }
    return handles;
  }

  /** Whether the volume is attached. The next pod gets it after a detach or a lost node. */
  #isHeld(handle: string): boolean {
    return [...this.#mounts.values()].some(
      (mount) => mount.handle === handle && !this.#world.deadNodes.has(mount.node),
    );
  }

  #start(uid: string, node: string): void {
    const pod = this.#podOf(uid);
    const plan = this.#plans.get(uid);
    if (!pod || !plan || pod.metadata.deletionTimestamp !== undefined) return;
    if (this.#world.deadNodes.has(node)) return;
    const handles = this.#handlesOf(uid);
    const isHeld = [...(handles?.values() ?? [])].some(({ handle }) => this.#isHeld(handle));
    if (!handles || isHeld || this.#world.cutNodes.has(node)) {
      this.#again(() => {
        this.#start(uid, node);
      });
      return;
    }
    const below = `${node}:${KUBELET_PODS}/${uid}/volumes`;
    for (const { name, directory } of plan.volumes) {
      const claimed = handles.get(name);
      const handle = claimed?.handle ?? `${DIRECTORY}${++this.#count}`;
      if (!claimed) this.#world.volumes.set(handle, directory ?? '');
      const path = claimed
        ? `kubernetes.io~csi/${claimed.volume}/mount`
        : `kubernetes.io~empty-dir/${name}`;
      this.#mounts.set(`${below}/${path}`, { handle, pod: uid, node });
    }
    if (plan.waitsFor === undefined) this.#run(uid);
    else this.#wait(uid);
  }

  #wait(uid: string): void {
    this.#tell(uid, this.#waiting(uid, { waiting: { reason: 'PodInitializing' } }));
    this.#again(() => {
      if (this.#podOf(uid)?.status?.phase !== 'Pending') return;
      this.#tell(uid, this.#waiting(uid, { running: {} }));
    });
  }

  #waiting(uid: string, state: object): object {
    const names = (this.#podOf(uid)?.spec.initContainers ?? []) as { name: string }[];
    return {
      phase: 'Pending',
      initContainerStatuses: names.map(({ name }) =>
        name === WAIT ? { name, state } : { name, state: { terminated: { exitCode: 0 } } },
      ),
    };
  }

  /** The helper in the init container: ends when all marks exist, and removes them. */
  #look(uid: string): void {
    const plan = this.#plans.get(uid);
    const mounts = [...this.#mounts.values()].filter(({ pod }) => pod === uid);
    const { waitsFor = '' } = plan ?? {};
    if (!plan || mounts.length < plan.volumes.length || this.#started.has(uid)) return;
    const [{ node } = { node: '' }] = mounts;
    if (this.#world.deadNodes.has(node)) return;
    if (!mounts.every(({ handle }) => this.hasMark(handle, waitsFor))) return;
    for (const { handle } of mounts) this.clearMarks(handle);
    this.#run(uid, this.#waiting(uid, { terminated: { exitCode: 0 } }));
  }

  #run(uid: string, status: object = {}): void {
    this.#started.add(uid);
    const tell = (): void => {
      this.#tell(uid, { ...status, phase: 'Running' });
    };
    // A kubelet reports that a Job's pod runs before it ends the pod, sometimes right before.
    const isTold = this.#random.chance(0.6) || this.#plans.get(uid)?.isBrief === true;
    if (isTold) tell();
    else {
      this.#world.note('kubelets that told late of a start');
      this.#world.after(5000, 90_000, tell);
    }
    if (this.#plans.get(uid)?.isBrief !== true) return;
    this.#world.note('jobs');
    this.#world.after(0, 2000, () => {
      this.#unmount(uid);
      // Includes the states that it had not reported.
      this.#tell(uid, { ...status, phase: 'Succeeded' });
      // Half of the Jobs are deleted after their end.
      if (!this.#random.chance(0.5)) return;
      this.#world.after(0, 5000, () => {
        const pod = this.#podOf(uid);
        if (pod) this.#end(pod);
      });
    });
  }

  /** The kubelet reports the status once it is connected. */
  #tell(uid: string, status: object): void {
    const pod = this.#podOf(uid);
    const node = String(pod?.spec.nodeName);
    if (!pod || this.#world.deadNodes.has(node)) return;
    if (!this.#world.cutNodes.has(node)) {
      const { phase } = (pod.status ?? {}) as { phase?: string };
      const isOver = phase === 'Succeeded' || phase === 'Failed';
      if (!isOver) this.#world.patch(PODS, APP, pod.metadata.name, { status });
    } else {
      this.#again(() => {
        this.#tell(uid, status);
      });
    }
  }

  #end({ metadata, spec }: Loose): void {
    if (metadata.deletionTimestamp !== undefined) return;
    const isHeld = spec.nodeName !== undefined;
    if (isHeld) {
      this.#world.patch(PODS, APP, metadata.name, { metadata: { finalizers: [KUBELET] } });
    }
    this.#world.delete(PODS, APP, metadata.name);
    if (isHeld) this.#finish(metadata.uid);
  }

  /** The kubelet's part of a deletion: ends containers after some time, then unmounts volumes. */
  #finish(uid: string): void {
    const isSlow = this.#random.chance(0.3);
    this.#world.after(300, isSlow ? 30_000 : 3000, () => {
      const pod = this.#podOf(uid);
      if (pod?.metadata.deletionTimestamp === undefined) return;
      if (this.#isOut(String(pod.spec.nodeName))) return;
      this.#unmount(uid);
      this.#world.after(0, 1000, () => {
        const now = this.#podOf(uid);
        if (now?.metadata.deletionTimestamp === undefined) return;
        this.#world.patch(PODS, APP, now.metadata.name, { metadata: { finalizers: null } });
      });
    });
  }

  #unmount(uid: string): void {
    for (const [path, { handle, pod }] of [...this.#mounts]) {
      if (pod !== uid) continue;
      this.#mounts.delete(path);
      if (handle.startsWith(DIRECTORY)) this.#world.volumes.delete(handle);
    }
  }

  #replace(successor: ClientPod): void {
    this.#again(() => {
      const before = this.#world.find(PODS, successor.name, APP) as unknown as Stored | undefined;
      if (before) {
        this.#replace(successor);
        return;
      }
      this.#world.note('client pods replaced');
      this.add(successor);
    });
  }
}
