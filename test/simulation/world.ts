import { FENCED_SUFFIX } from '../../src/agent/fence.ts';
import { moverOf } from '../../src/agent/named-mover.ts';
import type { Clock } from '../../src/base/index.ts';
import { mergePatch } from '../../src/dev/patches.ts';
import { ApiError } from '../../src/dev/api-error.ts';
import { type Change, Store, type Stored } from '../../src/dev/store.ts';
import {
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  EVENTS,
  type KubeObject,
  NODES,
  PODS,
  PVCS,
  PVS,
  type Resource,
  STORAGE_CLASSES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import type { Random, VirtualTime } from './virtual-time.ts';

export const NAMESPACE = 'velero';
const CLASS = 'simulated';
const DRIVER = 'csi.simulated';
/** Kept on pods that are to end, until their kubelet has done so. */
const KUBELET = 'simulation/kubelet';
/** Of a volume that a data mover has begun to restore into. */
const HALF = 'half of something';

interface Loose {
  metadata: KubeObject['metadata'];
  spec: Record<string, unknown>;
  status?: Record<string, unknown>;
}

export interface WorldOptions {
  readonly nodes: readonly string[];
  /** Chance that a data mover dies before its end; each CR has so many deaths at most. */
  readonly moverDeath: () => number;
  readonly moverDeathsMax: number;
  /** A mover of a restore that cannot read its CR for so long stops. */
  readonly fenceMs: number;
  readonly reclaimPolicy: 'Delete' | 'Retain';
  /** How long a data mover takes, by its CR's name; by chance without it. */
  readonly moveMs?: (name: string) => number;
  /** Pods go to the node that has the fewest of them, as the scheduler does that spreads them; anywhere without it. */
  readonly isSpread?: boolean;
}

/**
 * All of a cluster but the agents: storage, snapshot and volume controllers, scheduler, kubelets with data movers, each
 * at its own pace. Volumes and snapshots are a word each, and the repository is what movers brought into it.
 */
export class World {
  readonly store: Store;
  /** Contents by handle. */
  readonly volumes = new Map<string, string>();
  readonly snapshots = new Map<string, string>();
  /** Handles of snapshots by those of volumes that are clones of them: some drivers cannot part the two. */
  readonly #clones = new Map<string, string>();
  /** Contents by snapshot ID. */
  readonly repository = new Map<string, string>();
  /** What must never have happened. */
  readonly violations: string[] = [];
  readonly deadNodes = new Set<string>();
  readonly cutNodes = new Set<string>();
  /** What happened, and how often: seeds that exercise nothing prove nothing. */
  readonly counts = new Map<string, number>();
  /** UIDs of pods whose processes have ended. */
  readonly #ended = new Set<string>();
  /** UIDs of pods that wrote to a volume, in their order, by its handle. */
  readonly #writers = new Map<string, string[]>();
  readonly reclaimPolicy: 'Delete' | 'Retain';
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #options: WorldOptions;
  readonly #deaths = new Map<string, number>();
  #count = 0;

  constructor(time: VirtualTime, random: Random, clock: Clock, options: WorldOptions) {
    this.#time = time;
    this.#random = random;
    this.#options = options;
    this.reclaimPolicy = options.reclaimPolicy;
    this.store = new Store(clock);
    this.store.create(STORAGE_CLASSES, undefined, {
      metadata: { name: CLASS },
      provisioner: DRIVER,
      reclaimPolicy: options.reclaimPolicy,
      volumeBindingMode: 'Immediate',
    } as never);
    this.store.create(DAEMON_SETS, NAMESPACE, {
      metadata: { name: 'node-agent' },
      spec: {
        selector: {},
        template: {
          metadata: { labels: { role: 'node-agent' } },
          spec: { containers: [{ name: 'node-agent', image: 'longshore' }] },
        },
      },
    } as never);
    for (const name of options.nodes) {
      this.store.create(NODES, undefined, { metadata: { name } } as never);
    }
    this.#on(VOLUME_SNAPSHOTS, (snapshot, type) => {
      if (type !== 'DELETED') this.#cutSnapshot(snapshot);
      else this.#dropContent(snapshot);
    });
    this.#on(VOLUME_SNAPSHOT_CONTENTS, (content, type) => {
      if (type === 'DELETED') {
        const handle = handleOf(content);
        // Also when another content names it: the driver knows nothing of that, which is the danger.
        if (content.spec.deletionPolicy === 'Delete') this.#deleteSnapshot(handle);
        return;
      }
      const { namespace, name } = content.spec.volumeSnapshotRef as Record<string, string>;
      const snapshot = this.#find(VOLUME_SNAPSHOTS, name ?? '', namespace);
      if (snapshot) this.#cutSnapshot(snapshot);
    });
    this.#on(PVCS, (claim, type) => {
      if (type === 'DELETED') this.#releaseVolume(claim);
      else this.#provision(claim);
    });
    this.#on(PVS, (volume, type) => {
      if (type === 'DELETED') {
        if (volume.spec.persistentVolumeReclaimPolicy === 'Delete') this.#deleteVolume(volume);
        return;
      }
      this.#reclaim(volume.metadata);
      const { namespace, name } = (volume.spec.claimRef ?? {}) as Record<string, string>;
      const claim = name === undefined ? undefined : this.#find(PVCS, name, namespace);
      if (claim) this.#provision(claim);
    });
    this.#on(PODS, (pod, type) => {
      if (type === 'ADDED' && pod.metadata.labels?.role === undefined) this.#schedule(pod);
    });
  }

  /** A claim with its volume, and a word in it. */
  addVolume(namespace: string, name: string, content: string, size = SIZE): void {
    const handle = `volume-${++this.#count}`;
    this.volumes.set(handle, content);
    const claim = this.store.create(PVCS, namespace, {
      metadata: { name },
      spec: { storageClassName: CLASS, volumeName: `pv-${handle}`, resources: sized(size) },
    } as never);
    this.#addVolumeObject(handle, claim as never);
    this.#bind(claim as never, `pv-${handle}`);
  }

  /** A claim that waits for its volume, as Velero's plugin leaves it. */
  addTarget(namespace: string, name: string): void {
    this.store.create(PVCS, namespace, {
      metadata: { name },
      spec: {
        storageClassName: CLASS,
        accessModes: ['ReadWriteOnce'],
        selector: { matchLabels: { 'velero.io/dynamic-pv-restore': name } },
        resources: sized(),
      },
    } as never);
  }

  addSnapshot(namespace: string, name: string, claim: string): void {
    this.store.create(VOLUME_SNAPSHOTS, namespace, {
      metadata: { name },
      spec: { source: { persistentVolumeClaimName: claim }, volumeSnapshotClassName: 'any' },
    } as never);
  }

  /** Writes that never fail: what people and other controllers do. */
  patch(
    resource: Resource<KubeObject>,
    namespace: string | undefined,
    name: string,
    patch: object,
  ): void {
    const found = this.#find(resource, name, namespace);
    if (!found) return;
    const after = mergePatch(structuredClone(found), patch) as Stored;
    this.store.update(
      resource,
      after,
      'status' in patch && isCore(resource) ? 'status' : undefined,
    );
  }

  delete(resource: Resource<KubeObject>, namespace: string, name: string): void {
    if (this.#find(resource, name, namespace)) this.store.delete(resource, namespace, name);
  }

  /** The content of the volume that a claim has; undefined while it has none. */
  contentOf(namespace: string, name: string): string | undefined {
    const claim = this.#find(PVCS, name, namespace);
    if (claim?.status?.phase !== 'Bound') return undefined;
    const volume = this.#find(PVS, String(claim.spec.volumeName));
    return volume && this.volumes.get(volumeHandle(volume));
  }

  /** The VolumeSnapshotContent that a VolumeSnapshot is bound to. */
  contentNameOf(namespace: string, snapshot: string): string | undefined {
    const { status } = this.#find(VOLUME_SNAPSHOTS, snapshot, namespace) ?? {};
    return status?.boundVolumeSnapshotContentName as string | undefined;
  }

  /** Its power is gone. Its pods stay, being ended for ever, until somebody says that the node is gone. */
  loseNode(node: string): void {
    this.deadNodes.add(node);
    this.#note('nodes lost');
    this.#after(20_000, 40_000, () => {
      this.#evict(node);
    });
    this.#after(60_000, 300_000, () => {
      if (this.#random.chance(0.5)) this.delete(NODES, '', node);
      else {
        const key = 'node.kubernetes.io/out-of-service';
        this.patch(NODES, '', node, { spec: { taints: [{ key, effect: 'NoExecute' }] } });
      }
      this.#after(0, 20_000, () => {
        for (const pod of this.#podsOf(node)) this.forceDelete(pod.metadata.name);
      });
    });
  }

  /** Cut off from the API server only: what runs there runs on, and its volumes are as before. */
  cutNode(node: string, ms: number): void {
    if (this.cutNodes.has(node) || this.deadNodes.has(node)) return;
    this.cutNodes.add(node);
    this.#note('nodes cut off');
    this.#after(20_000, 40_000, () => {
      if (!this.cutNodes.has(node)) return;
      this.#setReady(node, 'False');
      this.#evict(node);
      if (!this.#random.chance(0.5)) return;
      // What desperate people do.
      this.#after(0, 20_000, () => {
        if (!this.cutNodes.has(node)) return;
        for (const { metadata } of this.#podsOf(node)) this.forceDelete(metadata.name);
      });
    });
    this.#time.after(ms, () => {
      this.cutNodes.delete(node);
      this.#setReady(node, 'True');
      for (const { metadata } of this.#podsOf(node)) this.#endPod(metadata);
    });
  }

  /** Without its node's word. */
  forceDelete(name: string): void {
    if (!this.#find(PODS, name, NAMESPACE)) return;
    this.#note('pods deleted by force');
    this.patch(PODS, NAMESPACE, name, { metadata: { finalizers: null } });
    this.delete(PODS, NAMESPACE, name);
  }

  #note(what: string): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
  }

  #podsOf(node: string): Loose[] {
    return this.store
      .list(PODS, { namespace: NAMESPACE, labelSelector: '!role' })
      .map((pod) => pod as unknown as Loose)
      .filter(({ spec }) => spec.nodeName === node);
  }

  #setReady(node: string, status: string): void {
    for (const pod of this.store.list(PODS, { labelSelector: 'role' })) {
      if ((pod as unknown as Loose).spec.nodeName !== node) continue;
      const conditions = [{ type: 'Ready', status }];
      this.patch(PODS, NAMESPACE, pod.metadata.name, { status: { conditions } });
    }
  }

  /** Its pods are to end, and go once their kubelet says that they have. */
  #evict(node: string): void {
    for (const { metadata } of this.#podsOf(node)) {
      this.patch(PODS, NAMESPACE, metadata.name, { metadata: { finalizers: [KUBELET] } });
      this.delete(PODS, NAMESPACE, metadata.name);
      this.#endPod(metadata);
    }
  }

  /** The kubelet's part of a deletion. */
  #endPod(metadata: Loose['metadata']): void {
    this.#after(300, 3000, () => {
      const pod = this.#find(PODS, metadata.name, NAMESPACE);
      if (pod?.metadata.uid !== metadata.uid || pod.metadata.deletionTimestamp === undefined)
        return;
      const node = String(pod.spec.nodeName);
      if (this.deadNodes.has(node) || this.cutNodes.has(node)) return;
      this.#ended.add(metadata.uid);
      if (!['Succeeded', 'Failed'].includes(String(pod.status?.phase))) {
        this.patch(PODS, NAMESPACE, metadata.name, { status: { phase: 'Failed' } });
      }
      this.patch(PODS, NAMESPACE, metadata.name, { metadata: { finalizers: null } });
    });
  }

  #after(lowMs: number, highMs: number, run: () => void): void {
    this.#time.after(this.#random.between(lowMs, highMs), run);
  }

  #on(resource: Resource<KubeObject>, see: (object: Loose, type: Change['type']) => void): void {
    this.store.watch(resource, {}, this.store.version, (type, object) => {
      this.#after(1, 300, () => {
        see(object as unknown as Loose, type);
      });
    });
  }

  #find(resource: Resource<KubeObject>, name: string, namespace?: string): Loose | undefined {
    try {
      return this.store.get(resource, namespace, name) as unknown as Loose;
    } catch (error) {
      if (error instanceof ApiError) return undefined;
      throw error;
    }
  }

  /** The snapshot controller: cuts what names a claim, and readies what names a content. */
  #cutSnapshot({ metadata }: Loose): void {
    const now = this.#find(VOLUME_SNAPSHOTS, metadata.name, metadata.namespace);
    if (!now || now.metadata.uid !== metadata.uid || now.status?.readyToUse === true) return;
    const source = now.spec.source as Record<string, string>;
    const { namespace = '', name, uid } = now.metadata;
    let contentName = source.volumeSnapshotContentName;
    if (contentName === undefined) {
      contentName = `snapcontent-${uid}`;
      if (!this.#find(VOLUME_SNAPSHOT_CONTENTS, contentName)) {
        const content = this.contentOf(namespace, source.persistentVolumeClaimName ?? '');
        const handle = `snapshot-${++this.#count}`;
        this.snapshots.set(handle, content ?? '');
        this.store.create(VOLUME_SNAPSHOT_CONTENTS, undefined, {
          metadata: { name: contentName },
          spec: {
            deletionPolicy: 'Delete',
            driver: DRIVER,
            source: { volumeHandle: 'any' },
            volumeSnapshotRef: { namespace, name, uid },
          },
        } as never);
        this.patch(VOLUME_SNAPSHOT_CONTENTS, '', contentName, {
          status: { snapshotHandle: handle, readyToUse: true },
        });
      }
    } else {
      const content = this.#find(VOLUME_SNAPSHOT_CONTENTS, contentName);
      if (!content) return;
      const ref = content.spec.volumeSnapshotRef as Record<string, string>;
      if (ref.uid !== undefined && ref.uid !== uid) return;
      const handle = (content.spec.source as Record<string, string>).snapshotHandle ?? '';
      this.patch(VOLUME_SNAPSHOT_CONTENTS, '', contentName, {
        status: { snapshotHandle: handle, readyToUse: this.snapshots.has(handle) },
      });
      if (!this.snapshots.has(handle)) {
        this.violations.push(`the storage's snapshot of ${namespace}/${name} is gone`);
        return;
      }
    }
    this.patch(VOLUME_SNAPSHOTS, namespace, name, {
      status: {
        boundVolumeSnapshotContentName: contentName,
        readyToUse: true,
        restoreSize: this.#sizeOf(namespace, source.persistentVolumeClaimName ?? ''),
      },
    });
    for (const claim of this.store.list(PVCS, { namespace })) this.#provision(claim as never);
  }

  #sizeOf(namespace: string, claim: string): string {
    const found = this.#find(PVCS, claim, namespace);
    const resources = found?.spec.resources as { requests: { storage: string } } | undefined;
    return resources?.requests.storage ?? SIZE;
  }

  #deleteVolume(volume: Loose): void {
    this.volumes.delete(volumeHandle(volume));
    this.#clones.delete(volumeHandle(volume));
  }

  #deleteSnapshot(handle: string): void {
    this.snapshots.delete(handle);
    if ([...this.#clones.values()].includes(handle)) {
      this.violations.push(`${handle} was to be deleted before the volume that was made of it`);
    }
  }

  #dropContent({ metadata, status }: Loose): void {
    const name = status?.boundVolumeSnapshotContentName;
    if (typeof name !== 'string') return;
    const content = this.#find(VOLUME_SNAPSHOT_CONTENTS, name);
    const ref = content?.spec.volumeSnapshotRef as Record<string, string> | undefined;
    if (content?.spec.deletionPolicy !== 'Delete' || ref?.name !== metadata.name) return;
    this.delete(VOLUME_SNAPSHOT_CONTENTS, '', name);
  }

  /** Provisioner and volume controller: makes a volume of a snapshot or an empty one, or binds what is given. */
  #provision({ metadata }: Loose): void {
    const claim = this.#find(PVCS, metadata.name, metadata.namespace);
    if (!claim || claim.metadata.uid !== metadata.uid || claim.status?.phase === 'Bound') return;
    const { namespace = '', name, uid } = claim.metadata;
    const given = this.store
      .list(PVS)
      .map((volume) => volume as unknown as Loose)
      .find(({ spec }) => {
        const ref = (spec.claimRef ?? {}) as Record<string, string>;
        return (
          ref.namespace === namespace &&
          ref.name === name &&
          (ref.uid === undefined || ref.uid === uid)
        );
      });
    if (given) {
      this.#bind(claim, given.metadata.name);
      return;
    }
    if (claim.spec.selector !== undefined || claim.spec.volumeName !== undefined) return;
    const source = claim.spec.dataSource as Record<string, string> | undefined;
    let content = '';
    let clonedFrom: string | undefined;
    if (source) {
      const snapshot = this.#find(VOLUME_SNAPSHOTS, source.name ?? '', namespace);
      if (snapshot?.status?.readyToUse !== true) return;
      const name = String(snapshot.status.boundVolumeSnapshotContentName);
      const of = this.#find(VOLUME_SNAPSHOT_CONTENTS, name);
      const found = of && this.snapshots.get(handleOf(of));
      if (found === undefined) return;
      content = found;
      clonedFrom = handleOf(of as Loose);
    }
    const handle = `volume-${++this.#count}`;
    if (clonedFrom !== undefined) this.#clones.set(handle, clonedFrom);
    this.volumes.set(handle, content);
    this.#addVolumeObject(handle, claim);
    this.#bind(claim, `pv-${handle}`);
  }

  #addVolumeObject(handle: string, { metadata }: Loose): void {
    const { namespace, name, uid } = metadata;
    this.store.create(PVS, undefined, {
      metadata: { name: `pv-${handle}` },
      spec: {
        csi: { driver: DRIVER, volumeHandle: handle },
        storageClassName: CLASS,
        persistentVolumeReclaimPolicy: this.#options.reclaimPolicy,
        claimRef: { namespace, name, uid },
      },
    } as never);
  }

  #bind({ metadata }: Loose, volume: string): void {
    const { namespace = '', name, uid } = metadata;
    this.patch(PVS, '', volume, { spec: { claimRef: { namespace, name, uid } } });
    this.patch(PVS, '', volume, { status: { phase: 'Bound' } });
    this.patch(PVCS, namespace, name, { spec: { volumeName: volume } });
    this.patch(PVCS, namespace, name, { status: { phase: 'Bound' } });
  }

  #releaseVolume(claim: Loose): void {
    const name = claim.spec.volumeName;
    const volume = typeof name === 'string' ? this.#find(PVS, name) : undefined;
    const ref = volume?.spec.claimRef as Record<string, string> | undefined;
    if (!volume || ref?.uid !== claim.metadata.uid) return;
    this.patch(PVS, '', volume.metadata.name, { status: { phase: 'Released' } });
    this.#reclaim(volume.metadata);
  }

  /** Some drivers take minutes to delete a volume. */
  #reclaim({ name, uid }: Loose['metadata']): void {
    const volume = this.#find(PVS, name);
    if (volume?.metadata.uid !== uid || volume.status?.phase !== 'Released') return;
    if (volume.spec.persistentVolumeReclaimPolicy !== 'Delete') return;
    const isSlow = this.#random.chance(0.2);
    this.#after(0, isSlow ? 200_000 : 500, () => {
      const now = this.#find(PVS, name);
      if (now?.metadata.uid !== uid || now.status?.phase !== 'Released') return;
      if (now.spec.persistentVolumeReclaimPolicy !== 'Delete') return;
      this.#deleteVolume(now);
      this.delete(PVS, '', name);
    });
  }

  /** Scheduler and kubelet: a pod starts on a living node once its claims are bound. */
  #schedule(pod: Loose): void {
    const now = this.#find(PODS, pod.metadata.name, pod.metadata.namespace);
    if (now?.metadata.uid !== pod.metadata.uid) return;
    const again = (): void => {
      this.#after(200, 1000, () => {
        this.#schedule(pod);
      });
    };
    const nodes = this.#options.nodes.filter(
      (node) => !this.deadNodes.has(node) && !this.cutNodes.has(node),
    );
    const node = this.#options.isSpread
      ? this.#emptiest(nodes)
      : nodes[this.#random.below(nodes.length)];
    const claims = ((now.spec.volumes ?? []) as Record<string, { claimName?: string }>[]).flatMap(
      ({ persistentVolumeClaim }) => persistentVolumeClaim?.claimName ?? [],
    );
    const isBound = claims.every(
      (name) => this.#find(PVCS, name, pod.metadata.namespace)?.status?.phase === 'Bound',
    );
    if (!isBound || node === undefined) {
      again();
      return;
    }
    this.patch(PODS, NAMESPACE, pod.metadata.name, { spec: { nodeName: node } });
    this.#startPod(pod, node, claims[0] ?? '');
  }

  #emptiest(nodes: readonly string[]): string | undefined {
    const pods = this.store.list(PODS, { namespace: NAMESPACE, labelSelector: '!role' });
    const count = new Map<unknown, number>();
    for (const { spec, status } of pods as unknown as Loose[]) {
      if (['Succeeded', 'Failed'].includes(String(status?.phase))) continue;
      count.set(spec.nodeName, (count.get(spec.nodeName) ?? 0) + 1);
    }
    return nodes.toSorted((a, b) => (count.get(a) ?? 0) - (count.get(b) ?? 0))[0];
  }

  /** The kubelet's part: a node that is cut off starts nothing before it is back. */
  #startPod(pod: Loose, node: string, claim: string): void {
    this.#after(300, 3000, () => {
      const now = this.#find(PODS, pod.metadata.name, NAMESPACE);
      const isThere = now?.metadata.uid === pod.metadata.uid && !now.metadata.deletionTimestamp;
      if (!isThere || this.deadNodes.has(node)) return;
      if (this.cutNodes.has(node)) {
        this.#startPod(pod, node, claim);
        return;
      }
      this.patch(PODS, NAMESPACE, pod.metadata.name, { status: { phase: 'Running' } });
      this.#move(pod, node, claim);
    });
  }

  #isPod({ metadata }: Loose): boolean {
    return this.#find(PODS, metadata.name, NAMESPACE)?.metadata.uid === metadata.uid;
  }

  /** One volume, one writer: whoever was followed by another one writes no more, nor does anyone once it is given away. */
  #write(handle: string, content: string, pod: Loose): void {
    const { uid, name } = pod.metadata;
    const writers = this.#writers.get(handle) ?? [];
    if (writers.at(-1) !== uid) {
      if (writers.includes(uid)) this.violations.push(`two data movers of ${name} wrote at once`);
      this.#writers.set(handle, [...writers, uid]);
    }
    const volume = this.store
      .list(PVS)
      .map((found) => found as unknown as Loose)
      .find((found) => volumeHandle(found) === handle);
    const of = (volume?.spec.claimRef as Record<string, string> | undefined)?.namespace;
    if (of === 'app') this.violations.push(`${name} was written after it was given away`);
    this.volumes.set(handle, content);
  }

  /**
   * The data mover in a pod, by the words it has with the agent: Events, and the termination message. It lives as long
   * as its node lets it, whatever became of its pod's object.
   */
  #move(pod: Loose, node: string, claim: string): void {
    const { name, uid, labels = {} } = pod.metadata;
    const isUpload = labels['velero.io/data-upload'] !== undefined;
    const resource = (isUpload ? DATA_UPLOADS : DATA_DOWNLOADS) as Resource<KubeObject>;
    const total = 1000;
    let done = 0;
    let step = 0;
    let heardMs = this.#time.nowMs;
    let handle: string | undefined;
    let cr: Loose | undefined;
    const end = (phase: string, message: string): void => {
      this.#ended.add(uid);
      const tell = (): void => {
        if (this.deadNodes.has(node) || !this.#isPod(pod)) return;
        if (this.cutNodes.has(node)) {
          this.#time.after(1000, tell);
          return;
        }
        const state = { terminated: { exitCode: phase === 'Succeeded' ? 0 : 1, message } };
        this.patch(PODS, NAMESPACE, name, {
          status: { phase, containerStatuses: [{ name: 'mover', state }] },
        });
      };
      tell();
    };
    const isDying =
      (this.#deaths.get(name) ?? 0) < this.#options.moverDeathsMax &&
      this.#random.chance(this.#options.moverDeath());
    const diesAt = this.#random.below(8);
    // Some take minutes.
    const isLong = this.#random.chance(0.3);
    const { moveMs } = this.#options;
    const stepBytes = moveMs ? 100 : isLong ? 20 : 250;
    // The first step takes no time.
    const stepMs = moveMs ? moveMs(name) / 9 : this.#random.between(200, isLong ? 8000 : 4000);
    const volumeOf = (): string | undefined => {
      const volume = this.#find(PVCS, claim, NAMESPACE)?.spec.volumeName;
      const found = typeof volume === 'string' ? this.#find(PVS, volume) : undefined;
      return found && volumeHandle(found);
    };
    const tick = (): void => {
      if (this.#ended.has(uid) || this.deadNodes.has(node)) return;
      const isCut = this.cutNodes.has(node);
      if (!isCut) {
        // The kubelet ends what has no pod any more.
        if (!this.#isPod(pod)) return;
        cr = this.#find(resource, name, NAMESPACE);
        heardMs = this.#time.nowMs;
      }
      const phase = cr?.status?.phase;
      if (isDying && step >= diesAt) {
        this.#deaths.set(name, (this.#deaths.get(name) ?? 0) + 1);
        this.#note(isUpload ? 'uploads killed' : 'downloads killed');
        end('Failed', '');
        return;
      }
      const mover = cr && moverOf(cr as never);
      const isNamed = mover === undefined || mover.pod === uid;
      const silentMs = this.#time.nowMs - heardMs;
      if (step > 0 && (!isNamed || (!isUpload && silentMs > this.#options.fenceMs))) {
        this.#note('fences');
        end('Failed', `its place is taken, or may be; ${FENCED_SUFFIX}`);
        return;
      }
      if (!isCut && (!cr || ['Completed', 'Failed', 'Canceled'].includes(String(phase)))) {
        end('Failed', 'it is over already');
        return;
      }
      if (!cr || (phase !== 'InProgress' && phase !== 'Canceling') || !isNamed) {
        this.#time.after(200, tick);
        return;
      }
      if (cr.spec.cancel === true) {
        end('Failed', 'data path is canceled');
        return;
      }
      // Mounted once, and there for as long as the pod's processes are.
      handle ??= volumeOf();
      if (!isCut && (handle === undefined || !this.volumes.has(handle))) {
        this.violations.push(`the volume of ${name} went while its data mover ran`);
        end('Failed', 'the volume is gone');
        return;
      }
      if (handle === undefined || !this.volumes.has(handle)) return;
      step++;
      done = Math.min(total, done + stepBytes);
      if (!isUpload) this.#write(handle, HALF, pod);
      if (!isCut) this.#tell(cr, { totalBytes: total, doneBytes: done });
      if (done < total) {
        this.#time.after(stepMs, tick);
        return;
      }
      if (isUpload) {
        const id = `snapshot-id-${++this.#count}`;
        this.repository.set(id, this.volumes.get(handle) ?? '');
        end('Succeeded', JSON.stringify({ snapshotID: id, totalBytes: total }));
      } else {
        this.#write(handle, this.repository.get(String(cr.spec.snapshotID)) ?? '', pod);
        end('Succeeded', JSON.stringify({ totalBytes: total }));
      }
    };
    tick();
  }

  #tell({ metadata }: Loose, progress: object): void {
    const { name, uid } = metadata;
    const event = `${name}.${++this.#count}`;
    this.store.create(EVENTS, NAMESPACE, {
      metadata: { name: event },
      involvedObject: { name, uid, namespace: NAMESPACE },
      reason: 'Data-Path-Progress',
      message: JSON.stringify(progress),
    } as never);
  }
}

const SIZE = '1Gi';
const sized = (storage = SIZE): object => ({ requests: { storage } });

const volumeHandle = ({ spec }: Loose): string =>
  (spec.csi as Record<string, string>).volumeHandle ?? '';

const handleOf = ({ spec, status }: Loose): string =>
  (status as Record<string, string> | undefined)?.snapshotHandle ??
  (spec.source as Record<string, string>).snapshotHandle ??
  '';

const isCore = ({ group }: Resource<KubeObject>): boolean => group !== 'velero.io';
