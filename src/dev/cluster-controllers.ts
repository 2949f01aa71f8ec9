import { lookup } from '../base/index.ts';
import type { Logger } from '../base/index.ts';
import {
  Cache,
  Controller,
  type KubeClient,
  keyOf,
  type Node,
  NODES,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Pod,
  PODS,
  PVCS,
  PVS,
  refOf,
  type Result,
  STORAGE_CLASSES,
} from '../kube/index.ts';

const SELECTED_NODE = 'volume.kubernetes.io/selected-node';

export interface ClusterControllersOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
}

/** The parts of a scheduler and a volume controller that hosting pods need. */
export class ClusterControllers {
  readonly #options: ClusterControllersOptions;

  constructor(options: ClusterControllersOptions) {
    this.#options = options;
  }

  async run(signal: AbortSignal): Promise<void> {
    const { client, logger } = this.#options;
    const claims = new Cache({ client, logger, resource: PVCS });
    const volumes = new Cache({ client, logger, resource: PVS });
    const pods = new Cache({ client, logger, resource: PODS });
    const nodes = new Cache({ client, logger, resource: NODES });
    const controller = new Controller({
      name: 'cluster',
      workers: 1,
      logger,
      reconcile: (key) => {
        const at = key.indexOf(' ');
        const ref = refOf(key.slice(at + 1));
        switch (key.slice(0, at)) {
          case 'pvc':
            return this.#bind(claims.get(ref), volumes);
          case 'pv':
            return this.#release(volumes.get(ref), claims);
          default:
            return this.#schedule(pods.get(ref), pods, nodes, claims);
        }
      },
    });
    const { queue } = controller;
    const addClaim = (ref: { namespace?: string | undefined; name?: string | undefined }): void => {
      if (ref.name !== undefined)
        queue.add(`pvc ${keyOf({ namespace: ref.namespace, name: ref.name })}`);
    };
    const addPods = (): void => {
      for (const pod of pods.list())
        if (!pod.spec.nodeName) queue.add(`pod ${keyOf(pod.metadata)}`);
    };
    claims.onChange((claim, before) => {
      if (claim) addClaim(claim.metadata);
      const volume = (claim ?? before)?.spec.volumeName;
      if (volume) queue.add(`pv ${volume}`);
      addPods();
    });
    volumes.onChange((volume) => {
      if (!volume) return;
      queue.add(`pv ${volume.metadata.name}`);
      addClaim(volume.spec.claimRef ?? {});
    });
    pods.onChange((pod) => {
      if (pod && !pod.spec.nodeName) queue.add(`pod ${keyOf(pod.metadata)}`);
    });
    nodes.onChange(addPods);
    await Promise.all([
      ...[claims, volumes, pods, nodes].map((cache) => cache.run(signal)),
      controller.run(signal),
    ]);
  }

  /** Binds a claim to a volume if they name each other, or if the volume names the claim. */
  async #bind(
    claim: PersistentVolumeClaim | undefined,
    volumes: Cache<PersistentVolume>,
  ): Promise<Result | undefined> {
    if (!claim || claim.status?.phase === 'Bound') return undefined;
    const { client } = this.#options;
    const { namespace, name, uid } = claim.metadata;
    const wanted = claim.spec.volumeName;
    const volume = volumes
      .list()
      .find(
        ({ metadata, spec }) =>
          (wanted ? metadata.name === wanted : true) &&
          spec.claimRef?.name === name &&
          spec.claimRef.namespace === namespace &&
          (spec.claimRef.uid === undefined || spec.claimRef.uid === uid),
      );
    if (!volume) {
      if (claim.status?.phase !== 'Pending') await this.#setStatus(claim, { phase: 'Pending' });
      return undefined;
    }
    if (volume.spec.claimRef?.uid !== uid) {
      const claimRef = { apiVersion: 'v1', kind: 'PersistentVolumeClaim', namespace, name, uid };
      await client.patch(PVS, volume.metadata, { spec: { claimRef } });
    }
    await client.patch(
      PVS,
      volume.metadata,
      { status: { phase: 'Bound' } },
      { subresource: 'status' },
    );
    if (claim.spec.volumeName !== volume.metadata.name) {
      const annotations = {
        'pv.kubernetes.io/bind-completed': 'yes',
        'pv.kubernetes.io/bound-by-controller': 'yes',
      };
      await client.patch(PVCS, claim.metadata, {
        metadata: { annotations },
        spec: { volumeName: volume.metadata.name },
      });
    }
    const { accessModes, capacity } = volume.spec;
    await this.#setStatus(claim, { phase: 'Bound', accessModes, capacity });
    return undefined;
  }

  async #setStatus({ metadata }: PersistentVolumeClaim, status: object): Promise<void> {
    const { client } = this.#options;
    await client.patch(PVCS, metadata, { status }, { subresource: 'status' });
  }

  /** Releases a volume whose claim was deleted. A volume without a claim becomes available. */
  async #release(
    volume: PersistentVolume | undefined,
    claims: Cache<PersistentVolumeClaim>,
  ): Promise<Result | undefined> {
    if (!volume) return undefined;
    const { claimRef } = volume.spec;
    const { client } = this.#options;
    const owner = claims.get({ namespace: claimRef?.namespace, name: claimRef?.name ?? '' });
    const isGone = claimRef?.uid !== undefined && owner?.metadata.uid !== claimRef.uid;
    if (!isGone || volume.status?.phase === 'Released') return undefined;
    // The watch may not have reported the claim yet.
    const found = await client.find(PVCS, {
      namespace: claimRef?.namespace,
      name: claimRef?.name ?? '',
    });
    if (found?.metadata.uid === claimRef?.uid) return undefined;
    await client.patch(
      PVS,
      volume.metadata,
      { status: { phase: 'Released' } },
      { subresource: 'status' },
    );
    return undefined;
  }

  /** Chooses the matching node with the fewest pods, and annotates late-binding claims with it. */
  async #schedule(
    pod: Pod | undefined,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    claims: Cache<PersistentVolumeClaim>,
  ): Promise<Result | undefined> {
    if (!pod || pod.spec.nodeName || pod.metadata.deletionTimestamp) return undefined;
    const { client } = this.#options;
    const wanted = pod.spec.nodeSelector ?? {};
    const fitting = nodes
      .list()
      .filter(({ metadata }) =>
        Object.entries(wanted).every(
          ([key, value]) =>
            lookup(metadata.labels, key) === value ||
            (key === 'kubernetes.io/hostname' && metadata.name === value),
        ),
      );
    const load = (node: Node): number =>
      pods.list().filter(({ spec }) => spec.nodeName === node.metadata.name).length;
    const [node] = fitting.sort((a, b) => load(a) - load(b));
    if (!node) return undefined;
    for (const { persistentVolumeClaim } of pod.spec.volumes ?? []) {
      if (!persistentVolumeClaim) continue;
      const ref = { namespace: pod.metadata.namespace, name: persistentVolumeClaim.claimName };
      const claim = claims.get(ref);
      if (!claim) return { requeueAfterMs: 200 };
      if (claim.status?.phase === 'Bound') continue;
      const storageClass = await client.find(STORAGE_CLASSES, {
        name: claim.spec.storageClassName ?? '',
      });
      const isLate = storageClass?.volumeBindingMode === 'WaitForFirstConsumer';
      if (isLate && claim.metadata.annotations?.[SELECTED_NODE] === undefined) {
        const annotations = { [SELECTED_NODE]: node.metadata.name };
        await client.patch(PVCS, ref, { metadata: { annotations } });
      }
      return { requeueAfterMs: 200 };
    }
    const { namespace = '', name } = pod.metadata;
    await client.raw({
      method: 'POST',
      path: `/api/v1/namespaces/${namespace}/pods/${name}/binding`,
      body: {
        apiVersion: 'v1',
        kind: 'Binding',
        metadata: { name, namespace },
        target: { apiVersion: 'v1', kind: 'Node', name: node.metadata.name },
      },
    });
    return undefined;
  }
}
