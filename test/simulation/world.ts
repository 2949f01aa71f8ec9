import type { Clock } from '../../src/base/index.ts';
import { mergePatch } from '../../src/dev/api-server/patches.ts';
import { type Change, Store, type Stored } from '../../src/dev/api-server/store.ts';
import {
  BEING_DELETED,
  CONTENT_FINALIZER,
  DAEMON_SETS,
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
import { ClientPods, type ClientWorld, KUBELET, KUBELET_PODS } from './client-pods.ts';
import { DataMovers, type MoverOptions, type MoverWorld } from './data-movers.ts';
import { type Loose, NAMESPACE, volumeHandle } from './objects.ts';
import type { Random, VirtualTime } from './virtual-time.ts';

const CLASS = 'simulated';
const DRIVER = 'csi.simulated';
export interface WorldOptions extends MoverOptions {
  readonly nodes: readonly string[];
  readonly reclaimPolicy: 'Delete' | 'Retain';
  /** Pods go to the node with the fewest pods, like a spreading scheduler. Default: to any node. */
  readonly isSpread?: boolean;
  /** The most hosting pods on a node; its kubelet refuses more. Default: no limit. */
  readonly podsMax?: number;
}

/**
 * A cluster without agents: storage, controllers of volumes and snapshots, scheduler and kubelets
 * with data movers. Each part has its own delays. Volumes and snapshots hold one word. The
 * repository holds what movers stored.
 */
export class World implements MoverWorld, ClientWorld {
  readonly store: Store;
  /** Contents by handle. */
  readonly volumes = new Map<string, string>();
  readonly snapshots = new Map<string, string>();
  /** Snapshots by their clones. Some drivers cannot delete a snapshot before its clones. */
  readonly #clones = new Map<string, string>();
  /** Contents by snapshot ID. */
  readonly repository = new Map<string, string>();
  /** Events that must never happen. */
  readonly violations: string[] = [];
  readonly deadNodes = new Set<string>();
  readonly cutNodes = new Set<string>();
  /** Counts of events: seeds that exercise nothing prove nothing. */
  readonly counts = new Map<string, number>();
  /** How long the hosting pod's node had been full at its last refusal, by the pod's name. */
  readonly refusedMs = new Map<string, number>();
  /** When nodes became full, by name. A free slot is taken again soon. */
  readonly #fullSinceMs = new Map<string, number>();
  readonly reclaimPolicy: 'Delete' | 'Retain';
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #options: WorldOptions;
  readonly movers: DataMovers;
  readonly clientPods: ClientPods;
  #count = 0;

  constructor(time: VirtualTime, random: Random, clock: Clock, options: WorldOptions) {
    this.#time = time;
    this.#random = random;
    this.#options = options;
    this.reclaimPolicy = options.reclaimPolicy;
    this.store = new Store(clock);
    this.clientPods = new ClientPods(this, random, options.nodes);
    this.movers = new DataMovers(this, time, random, options);
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
          spec: {
            containers: [{ name: 'node-agent', image: 'longshore' }],
            volumes: [{ name: 'host-pods', hostPath: { path: KUBELET_PODS } }],
          },
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
        // A content that was made for a VolumeSnapshot has no finalizer here.
        if (!isMadeForHandle(content)) this.#deleteSnapshotOf(content);
        return;
      }
      this.#endContent(content.metadata);
      const { namespace, name } = content.spec.volumeSnapshotRef as Record<string, string>;
      const snapshot = this.find(VOLUME_SNAPSHOTS, name ?? '', namespace);
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
      const claim = name === undefined ? undefined : this.find(PVCS, name, namespace);
      if (claim) this.#provision(claim);
    });
    this.#on(PODS, (pod, type) => {
      const isHosting = pod.metadata.namespace === NAMESPACE && !pod.metadata.labels?.role;
      if (type === 'ADDED' && isHosting) this.#schedule(pod);
    });
  }

  /** Creates a claim with its volume and content. */
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

  /** Creates a claim that waits for its volume, as Velero's plugin leaves it. */
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

  /** Writes of people and other controllers, which never fail. */
  patch(
    resource: Resource<KubeObject>,
    namespace: string | undefined,
    name: string,
    patch: object,
  ): void {
    const found = this.find(resource, name, namespace);
    if (!found) return;
    const after = mergePatch(found, patch) as Stored;
    this.store.update(
      resource,
      after,
      'status' in patch && isCore(resource) ? 'status' : undefined,
    );
  }

  delete(resource: Resource<KubeObject>, namespace: string, name: string): void {
    if (this.find(resource, name, namespace)) this.store.delete(resource, namespace, name);
  }

  /** The content of a claim's volume; undefined while it has none. */
  contentOf(namespace: string, name: string): string | undefined {
    const claim = this.find(PVCS, name, namespace);
    if (claim?.status?.phase !== 'Bound') return undefined;
    const volume = this.find(PVS, String(claim.spec.volumeName));
    return volume && this.volumes.get(volumeHandle(volume));
  }

  /** The VolumeSnapshotContent that a VolumeSnapshot is bound to. */
  contentNameOf(namespace: string, snapshot: string): string | undefined {
    const { status } = this.find(VOLUME_SNAPSHOTS, snapshot, namespace) ?? {};
    return status?.boundVolumeSnapshotContentName as string | undefined;
  }

  /** The node loses power. Its pods stay terminating until the node is declared dead. */
  loseNode(node: string): void {
    this.deadNodes.add(node);
    this.note('nodes lost');
    this.after(20_000, 40_000, () => {
      this.#evict(node);
    });
    this.after(60_000, 300_000, () => {
      if (this.#random.chance(0.5)) this.delete(NODES, '', node);
      else {
        const key = 'node.kubernetes.io/out-of-service';
        this.patch(NODES, '', node, { spec: { taints: [{ key, effect: 'NoExecute' }] } });
      }
      this.after(0, 20_000, () => {
        for (const pod of this.#podsOf(node)) this.forceDelete(pod.metadata.name);
        this.clientPods.forceDeleteFrom(node);
      });
    });
  }

  /** Cuts the node off from the API server. Its processes keep running, with their volumes. */
  cutNode(node: string, ms: number): void {
    if (this.cutNodes.has(node) || this.deadNodes.has(node)) return;
    this.cutNodes.add(node);
    this.note('nodes cut off');
    this.after(20_000, 40_000, () => {
      if (!this.cutNodes.has(node)) return;
      this.#setReady(node, 'False');
      this.#evict(node);
      if (!this.#random.chance(0.5)) return;
      // Some admins delete pods by force.
      this.after(0, 20_000, () => {
        if (!this.cutNodes.has(node)) return;
        for (const { metadata } of this.#podsOf(node)) this.forceDelete(metadata.name);
        if (this.#random.chance(0.5)) this.clientPods.forceDeleteFrom(node);
      });
    });
    this.#time.after(ms, () => {
      this.cutNodes.delete(node);
      this.#setReady(node, 'True');
      for (const { metadata } of this.#podsOf(node)) this.#endPod(metadata);
      this.clientPods.nodeIsBack(node);
    });
  }

  /** Without an answer from its node. */
  forceDelete(name: string): void {
    if (!this.find(PODS, name, NAMESPACE)) return;
    this.note('pods deleted by force');
    this.movers.unheard.add(name);
    this.patch(PODS, NAMESPACE, name, { metadata: { finalizers: null } });
    this.delete(PODS, NAMESPACE, name);
  }

  note(what: string): void {
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

  /** Ends the pods of a node. They are deleted once their kubelet reports their end. */
  #evict(node: string): void {
    for (const { metadata } of this.#podsOf(node)) {
      this.patch(PODS, NAMESPACE, metadata.name, { metadata: { finalizers: [KUBELET] } });
      this.delete(PODS, NAMESPACE, metadata.name);
      this.movers.unheard.add(metadata.name);
      this.#endPod(metadata);
    }
    if (this.#random.chance(0.7)) this.clientPods.evictFrom(node);
  }

  /** The kubelet's part of a deletion. */
  #endPod(metadata: Loose['metadata']): void {
    this.after(300, 3000, () => {
      const pod = this.find(PODS, metadata.name, NAMESPACE);
      if (pod?.metadata.uid !== metadata.uid || pod.metadata.deletionTimestamp === undefined)
        return;
      const node = String(pod.spec.nodeName);
      if (this.deadNodes.has(node) || this.cutNodes.has(node)) return;
      this.movers.kill(metadata.uid);
      if (!['Succeeded', 'Failed'].includes(String(pod.status?.phase))) {
        this.patch(PODS, NAMESPACE, metadata.name, { status: { phase: 'Failed' } });
      }
      this.patch(PODS, NAMESPACE, metadata.name, { metadata: { finalizers: null } });
    });
  }

  /** Runs after a time between the two, once the API server accepts writes. */
  after(lowMs: number, highMs: number, run: () => void): void {
    this.#time.after(this.#random.between(lowMs, highMs), () => {
      this.#onceTaken(run);
    });
  }

  /** Controllers and kubelets retry until their writes are accepted. */
  #onceTaken(run: () => void): void {
    if (this.#options.isFull?.() !== true) run();
    else {
      this.#time.after(this.#random.between(1000, 60_000), () => {
        this.#onceTaken(run);
      });
    }
  }

  #on(resource: Resource<KubeObject>, see: (object: Loose, type: Change['type']) => void): void {
    this.store.watch(resource, {}, this.store.version, (type, object) => {
      this.after(1, 300, () => {
        see(object as unknown as Loose, type);
      });
    });
  }

  find(resource: Resource<KubeObject>, name: string, namespace?: string): Loose | undefined {
    if (!this.store.has(resource, namespace, name)) return undefined;
    return this.store.get(resource, namespace, name) as unknown as Loose;
  }

  /** The snapshot controller: cuts snapshots of claims, and binds snapshots of contents. */
  #cutSnapshot({ metadata }: Loose): void {
    const now = this.find(VOLUME_SNAPSHOTS, metadata.name, metadata.namespace);
    if (!now || now.metadata.uid !== metadata.uid || now.status?.readyToUse === true) return;
    const source = now.spec.source as Record<string, string>;
    const { namespace = '', name, uid } = now.metadata;
    let contentName = source.volumeSnapshotContentName;
    if (contentName === undefined) {
      contentName = `snapcontent-${uid}`;
      if (!this.find(VOLUME_SNAPSHOT_CONTENTS, contentName)) {
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
      const content = this.find(VOLUME_SNAPSHOT_CONTENTS, contentName);
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
    const found = this.find(PVCS, claim, namespace);
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

  /** The snapshot controller: deletes the content of a bound snapshot. */
  #dropContent({ metadata, status }: Loose): void {
    const name = status?.boundVolumeSnapshotContentName;
    if (typeof name !== 'string') return;
    const content = this.find(VOLUME_SNAPSHOT_CONTENTS, name);
    const ref = content?.spec.volumeSnapshotRef as Record<string, string> | undefined;
    if (content?.spec.deletionPolicy !== 'Delete' || ref?.name !== metadata.name) return;
    const mark = { metadata: { annotations: { [BEING_DELETED]: 'yes' } } };
    this.patch(VOLUME_SNAPSHOT_CONTENTS, '', name, mark);
    this.delete(VOLUME_SNAPSHOT_CONTENTS, '', name);
  }

  /** The csi-snapshotter. */
  #endContent({ name, uid }: Loose['metadata']): void {
    const now = this.find(VOLUME_SNAPSHOT_CONTENTS, name);
    if (!now || now.metadata.uid !== uid || !isLetGo(now)) return;
    const { snapshotHandle } = (now.status ?? {}) as Record<string, string | undefined>;
    if (snapshotHandle !== undefined) this.#deleteSnapshotOf(now);
    this.patch(VOLUME_SNAPSHOT_CONTENTS, '', name, { metadata: { finalizers: [] } });
  }

  /** Deletes it even if another content names it: the driver does not know. This is the danger. */
  #deleteSnapshotOf(content: Loose): void {
    if (content.spec.deletionPolicy === 'Delete') this.#deleteSnapshot(handleOf(content));
  }

  /** Provisioner and volume controller: makes a volume, from a snapshot or empty, or binds one. */
  #provision({ metadata }: Loose): void {
    const claim = this.find(PVCS, metadata.name, metadata.namespace);
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
      const snapshot = this.find(VOLUME_SNAPSHOTS, source.name ?? '', namespace);
      if (snapshot?.status?.readyToUse !== true) return;
      const name = String(snapshot.status.boundVolumeSnapshotContentName);
      const of = this.find(VOLUME_SNAPSHOT_CONTENTS, name);
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
    const volume = typeof name === 'string' ? this.find(PVS, name) : undefined;
    const ref = volume?.spec.claimRef as Record<string, string> | undefined;
    if (!volume || ref?.uid !== claim.metadata.uid) return;
    this.patch(PVS, '', volume.metadata.name, { status: { phase: 'Released' } });
    this.#reclaim(volume.metadata);
  }

  /** Some drivers take minutes to delete a volume. */
  #reclaim({ name, uid }: Loose['metadata']): void {
    const volume = this.find(PVS, name);
    if (volume?.metadata.uid !== uid || volume.status?.phase !== 'Released') return;
    if (volume.spec.persistentVolumeReclaimPolicy !== 'Delete') return;
    const isSlow = this.#random.chance(0.2);
    this.after(0, isSlow ? 200_000 : 500, () => {
      const now = this.find(PVS, name);
      if (now?.metadata.uid !== uid || now.status?.phase !== 'Released') return;
      if (now.spec.persistentVolumeReclaimPolicy !== 'Delete') return;
      this.#deleteVolume(now);
      this.delete(PVS, '', name);
    });
  }

  /** Scheduler and kubelet: a pod starts on a living node once its claims are bound. */
  #schedule(pod: Loose): void {
    const now = this.find(PODS, pod.metadata.name, pod.metadata.namespace);
    if (now?.metadata.uid !== pod.metadata.uid) return;
    if (typeof now.spec.nodeName === 'string') {
      // Its creator has chosen the node.
      this.#startPod(pod, now.spec.nodeName, '');
      return;
    }
    const again = (): void => {
      this.after(200, 1000, () => {
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
      (name) => this.find(PVCS, name, pod.metadata.namespace)?.status?.phase === 'Bound',
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

  /** The kubelet: while a node is cut off, it starts nothing. */
  #startPod(pod: Loose, node: string, claim: string): void {
    this.after(300, 3000, () => {
      const now = this.find(PODS, pod.metadata.name, NAMESPACE);
      const isThere = now?.metadata.uid === pod.metadata.uid && !now.metadata.deletionTimestamp;
      if (!isThere || this.deadNodes.has(node)) return;
      if (this.cutNodes.has(node)) {
        this.#startPod(pod, node, claim);
        return;
      }
      const path = hostPathOf(pod);
      if (path !== undefined && !this.clientPods.mountAt(node, path)) {
        this.#refuse(pod, path);
        this.after(2000, 10_000, () => {
          this.#startPod(pod, node, claim);
        });
        return;
      }
      const { podsMax = Infinity } = this.#options;
      if (this.#runningOn(node) >= podsMax) {
        this.note('pods refused');
        const sinceMs = this.#fullSinceMs.get(node) ?? this.#time.nowMs;
        this.refusedMs.set(pod.metadata.name, this.#time.nowMs - sinceMs);
        const message = `Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: ${podsMax}, capacity: ${podsMax}`;
        const status = { phase: 'Failed', reason: 'OutOfpods', message };
        this.patch(PODS, NAMESPACE, pod.metadata.name, { status });
        return;
      }
      this.patch(PODS, NAMESPACE, pod.metadata.name, { status: { phase: 'Running' } });
      this.#fullSinceMs.set(node, this.#time.nowMs);
      this.movers.start(pod, node, claim, path);
    });
  }

  #runningOn(node: string): number {
    return this.#podsOf(node).filter(({ status }) => status?.phase === 'Running').length;
  }

  #refuse({ metadata: { name, uid } }: Loose, path: string): void {
    this.note('directories refused');
    this.store.create(EVENTS, NAMESPACE, {
      metadata: { name: `${name}.refused-${++this.#count}` },
      involvedObject: { name, uid, namespace: NAMESPACE },
      reason: 'FailedMount',
      message: `MountVolume.SetUp failed for volume "${uid}": hostPath type check failed: ${path} is not a directory`,
    } as never);
  }
}

const SIZE = '1Gi';
const sized = (storage = SIZE): object => ({ requests: { storage } });

const handleOf = ({ spec, status }: Loose): string =>
  (status as Record<string, string> | undefined)?.snapshotHandle ??
  (spec.source as Record<string, string>).snapshotHandle ??
  '';

const isMadeForHandle = ({ spec }: Loose): boolean =>
  (spec.source as Record<string, string>).snapshotHandle !== undefined;

/** Whether the csi-snapshotter releases a content, as v8.7.0 (shouldDelete). */
function isLetGo({ metadata, spec }: Loose): boolean {
  const { deletionTimestamp, finalizers = [], annotations = {} } = metadata;
  if (deletionTimestamp === undefined || !finalizers.includes(CONTENT_FINALIZER)) return false;
  const { uid } = spec.volumeSnapshotRef as Record<string, string>;
  return uid === undefined || annotations[BEING_DELETED] !== undefined;
}

const isCore = ({ group }: Resource<KubeObject>): boolean => group !== 'velero.io';

function hostPathOf({ spec }: Loose): string | undefined {
  const volumes = (spec.volumes ?? []) as { hostPath?: { path: string } }[];
  return volumes.find(({ hostPath }) => hostPath !== undefined)?.hostPath?.path;
}
