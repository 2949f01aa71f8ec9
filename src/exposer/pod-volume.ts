import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, quantityBytes } from '../base/index.ts';
import {
  type ContainerStatus,
  EVENTS,
  excludesOfPodVolume,
  isPodOver,
  type KubeClient,
  NODES,
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  type PodVolumeBackup,
  type PodVolumeRestore,
  type Resource,
} from '../kube/index.ts';
import { cacheClaimRef, createCacheClaim } from './cache-claim.ts';
import { diagnose } from './diagnosis.ts';
import { hostingPod, loadTemplate, type Template } from './hosting-pod.ts';
import { assertMadeFor, makeFor } from './ownership.ts';
import { findPodVolume } from './pod-volume-path.ts';
import type { ExposeContext, ExposerOptions } from './settings.ts';
import { step } from './steps.ts';
import { deletePod, removePodAndVolumes, settleAll, volumesOf } from './volumes.ts';
import { isWaitOver, WAIT_CONTAINER, waitStatusOf } from './wait-container.ts';

type PodVolume = PodVolumeBackup | PodVolumeRestore;

/**
 * The volume of Velero's DaemonSet that says where the kubelet keeps its pods
 * (pkg/nodeagent/node_agent.go).
 */
const HOST_PODS = 'host-pods';
/**
 * On the pod template, in its place: a volume would ask for rights that the agents' own pods do not
 * need (OpenShift refuses them).
 */
const HOST_PODS_ANNOTATION = 'longshore.io/host-pods';
/**
 * When it is looked whether the kubelet finds the directory: most pods run at the first look, and a
 * thousand agents look. It has to say twice that there is none: a node that was started again
 * mounts volumes one after the other. Our choice.
 */
const LOOKS_MS = [1000, 2000, 4000, 8000, 8000];
/** Between two looks at a pod whose volumes are not mounted yet. Our choice. */
const MOUNTED_MS = 1000;
const MOUNTED_MS_MAX = 10_000;
/**
 * As the kubelet says it of a hostPath that is no directory, or not there; what it says of other
 * volumes may pass.
 */
const NO_DIRECTORY = /hostPath type check failed/;

/** What a restore waits for, or why it will never be done. */
export type RestoreTarget =
  | { readonly is: 'ready'; readonly node: string }
  | { readonly is: 'waiting'; readonly for: string }
  | { readonly is: 'elsewhere'; readonly node: string }
  | { readonly is: 'over'; readonly message: string };

export interface PodVolumeKind<V extends PodVolume> {
  readonly kind: 'pod-volume-backup' | 'pod-volume-restore';
  readonly resource: Resource<V>;
}

export const BACKUP_KIND: PodVolumeKind<PodVolumeBackup> = {
  kind: 'pod-volume-backup',
  resource: POD_VOLUME_BACKUPS,
};
export const RESTORE_KIND: PodVolumeKind<PodVolumeRestore> = {
  kind: 'pod-volume-restore',
  resource: POD_VOLUME_RESTORES,
};

/**
 * Gives a hosting pod the directory of the node that another pod has its volume in, and no other
 * one. Each step looks at what is there, so that it may be run again after a crash at any point.
 * Velero: pkg/exposer/pod_volume.go.
 */
export class PodVolumeExposer<V extends PodVolume> {
  readonly #options: ExposerOptions;
  readonly #kind: PodVolumeKind<V>;

  constructor(options: ExposerOptions, kind: PodVolumeKind<V>) {
    this.#options = options;
    this.#kind = kind;
  }

  /**
   * Returns once the pod is made, and its node does not refuse the directory. `node`: this agent's.
   * Throws errors whose message says what failed and on what.
   */
  async expose(movement: V, node: string, context: ExposeContext): Promise<void> {
    const { client, namespace, daemonSet } = this.#options;
    const { signal } = context;
    const ref = { namespace, name: movement.metadata.name };
    const there = assertMadeFor(PODS, await client.find(PODS, ref, { signal }), movement);
    context.onMake?.();
    const prefix = `error to expose ${this.#kind.kind === 'pod-volume-backup' ? 'PVB' : 'PVR'}`;
    await step(prefix, async () => {
      const pod = there ?? (await this.#createPod(movement, node, context));
      const isMounted = async (): Promise<boolean> => {
        const { pod: found } = await this.lookAtPod(movement, node, { signal });
        return found !== undefined && this.#unmounted(movement, found, node) === undefined;
      };
      await assertDirectoryFound(client, pod, isMounted, signal).catch((error: unknown) => {
        if (isCode(error, 'EXPOSE_FAILED')) throw error;
        // Whoever looks at the pod next finds out.
        if (!signal.aborted)
          this.#options.logger.debug({ daemonSet }, 'the pod could not be watched');
      });
    });
  }

  async #createPod(movement: V, node: string, context: ExposeContext): Promise<Pod> {
    const { client, namespace, daemonSet } = this.#options;
    const { signal } = context;
    const { kind, resource } = this.#kind;
    const isBackup = kind === 'pod-volume-backup';
    const template = await loadTemplate(client, namespace, daemonSet);
    const hostPods = hostPodsOf(template, `${namespace}/${daemonSet}`);
    const pod = await this.#clientPod(movement, node, signal);
    await assertLinux(client, node, signal);
    const { volume } = movement.spec;
    const { path, capacity, claim } = await findPodVolume(client, pod, volume, signal);
    const cacheClaim = isBackup
      ? undefined
      : await step('error to create cache pvc', () =>
          createCacheClaim(
            this.#options,
            POD_VOLUME_RESTORES,
            movement as unknown as PodVolumeRestore,
            node,
          ),
        );
    const size = 'snapshotSize' in movement.spec ? movement.spec.snapshotSize : undefined;
    const made = hostingPod(
      {
        kind,
        owner: movement,
        resource,
        storageLocation: movement.spec.backupStorageLocation,
        volume: {
          hostPath: `${hostPods}/${pod.metadata.uid}/${path}`,
          node,
          readOnly: isBackup,
        },
        isBlock: false,
        operationTimeout: `${Math.round(context.operationTimeoutMs / 1000)}s`,
        cacheClaim,
        ...(isBackup && {
          excludedBy: {
            storageClass: claim?.spec.storageClassName ?? '',
            annotations: excludesOfPodVolume(pod, volume, claim),
          },
        }),
        volumeBytes: typeof size === 'number' ? size : quantityBytes(capacity ?? ''),
      },
      template,
      this.#options,
    );
    return step('error to create hosting pod', () => makeFor(client, PODS, made, movement));
  }

  /**
   * The pod whose volume it is, where the CR says that it is, once its volumes are mounted: after
   * its node was started again that takes until the storage's driver is back. Another pod of its
   * name has other data.
   */
  async #clientPod(movement: V, node: string, signal: AbortSignal): Promise<Pod> {
    const startMs = performance.now();
    for (let pauseMs = MOUNTED_MS; ; pauseMs = Math.min(2 * pauseMs, MOUNTED_MS_MAX)) {
      const found = await this.lookAtPod(movement, node, { signal });
      if (found.reason !== undefined) throw new CodedError('EXPOSE_FAILED', found.reason);
      const { pod } = found;
      const reason = this.#unmounted(movement, pod, node);
      if (reason === undefined) return pod;
      if (performance.now() - startMs >= this.#options.prepareTimeoutMs) {
        throw new CodedError('EXPOSE_FAILED', `its volume is not mounted: ${reason}`);
      }
      await sleep(pauseMs, undefined, { signal });
    }
  }

  /**
   * Why its node may not have all volumes of the pod mounted, in words: they are before any of its
   * containers runs.
   */
  #unmounted(movement: V, pod: Pod, node: string): string | undefined {
    const { namespace = '', name } = pod.metadata;
    if (this.#kind.kind === 'pod-volume-backup') {
      return mayBeUnmounted(pod) ? `no container of pod ${namespace}/${name} runs yet` : undefined;
    }
    const target = restoreTargetOf(movement as unknown as PodVolumeRestore, pod, node);
    return target.is === 'waiting' ? target.for : undefined;
  }

  /**
   * The pod whose volume it is; else why it can be served no more, in words. `isMoving`: what is
   * read may be read to the end while the pod is ending.
   */
  async lookAtPod(
    { spec }: V,
    node: string,
    { signal, isMoving = false }: { signal?: AbortSignal; isMoving?: boolean } = {},
  ): Promise<{ reason: string; pod?: undefined } | { reason?: undefined; pod: Pod }> {
    const { namespace = '', name = '', uid } = spec.pod;
    const what = `pod ${namespace}/${name}`;
    const pod = await this.#options.client.find(PODS, { namespace, name }, { signal });
    if (!pod) return { reason: `${what} does not exist any more` };
    if (uid !== undefined && uid !== '' && pod.metadata.uid !== uid) {
      return { reason: `${what} was replaced by another pod of the same name` };
    }
    const mayEnd = isMoving && this.#kind.kind === 'pod-volume-backup';
    if (pod.metadata.deletionTimestamp !== undefined && !mayEnd) {
      return { reason: `${what} is being deleted` };
    }
    const { nodeName = '' } = pod.spec;
    if (nodeName === '') return { reason: `client pod ${name} doesn't have a node name` };
    if (nodeName !== node) return { reason: `${what} is on node ${nodeName}, not on node ${node}` };
    const phase = pod.status?.phase ?? 'Pending';
    if (isPodOver(phase)) {
      return { reason: `${what} has ended (${phase}), and its volumes are not mounted any more` };
    }
    return { pod };
  }

  /**
   * What the pod of a restore does. That it has gone on means that all its volumes are restored:
   * what it waits by ends well for no other reason, and the mover of each of them has done its last
   * act then.
   */
  async waitingPod({ spec }: V, signal: AbortSignal): Promise<'waits' | 'has gone on' | 'is over'> {
    const { namespace = '', name = '', uid } = spec.pod;
    const pod = await this.#options.client.find(PODS, { namespace, name }, { signal });
    if (!pod || (uid !== undefined && uid !== '' && pod.metadata.uid !== uid)) return 'is over';
    if (isWaitOver(pod)) return 'has gone on';
    const phase = pod.status?.phase;
    const isEnded = isPodOver(phase);
    return isEnded || pod.metadata.deletionTimestamp !== undefined ? 'is over' : 'waits';
  }

  async startAgain(movement: V, node: string, context: ExposeContext): Promise<void> {
    const { client, namespace } = this.#options;
    const ref = { namespace, name: movement.metadata.name };
    await deletePod(client, ref, movement, { signal: context.signal });
    await this.expose(movement, node, context);
  }

  diagnose({ metadata: { name } }: V): Promise<string> {
    const { client, namespace } = this.#options;
    return diagnose(client, { namespace, name }, []);
  }

  /** Of the cache's claim. */
  volumesOf(movement: V): Promise<string[]> {
    if (this.#kind.kind === 'pod-volume-backup') return Promise.resolve([]);
    const { client, namespace } = this.#options;
    return volumesOf(client, movement, [cacheClaimRef(namespace, movement)]);
  }

  /**
   * Removes all that was made for it. True when it is gone; what fails is logged, and tried again
   * by whoever calls again.
   */
  cleanUp(movement: V, volumes: readonly string[], isBare = false): Promise<boolean> {
    if (isBare) return Promise.resolve(true);
    const { client, namespace, logger } = this.#options;
    const ref = { namespace, name: movement.metadata.name };
    const claims =
      this.#kind.kind === 'pod-volume-backup' ? [] : [cacheClaimRef(namespace, movement)];
    return settleAll(logger, {
      'hosting pod': removePodAndVolumes(client, {
        owner: movement,
        pod: ref,
        claims,
        noted: new Set(volumes),
      }),
    });
  }
}

/**
 * Whether a restore may begin, by the pod that waits for it (Velero:
 * pkg/controller/pod_volume_restore_controller.go).
 */
export function restoreTargetOf(
  { spec }: PodVolumeRestore,
  pod: Pod | undefined,
  node: string,
): RestoreTarget {
  const { namespace = '', name = '', uid } = spec.pod;
  const what = `pod ${namespace}/${name}`;
  const over = (text: string): RestoreTarget => ({ is: 'over', message: `${what} ${text}` });
  if (!pod) return over('does not exist any more, so nothing waits for its data');
  if (uid !== undefined && uid !== '' && pod.metadata.uid !== uid) {
    return over('was replaced by another pod of the same name: its volume was left untouched');
  }
  if (pod.metadata.deletionTimestamp !== undefined) {
    return over('is being deleted, so nothing waits for its data');
  }
  const phase = pod.status?.phase ?? 'Pending';
  if (phase !== 'Pending') {
    return over(`does not wait for its data any more: it is ${phase}`);
  }
  if (!pod.spec.initContainers?.some((container) => container.name === WAIT_CONTAINER)) {
    return over(`has no init container ${WAIT_CONTAINER} that waits for its data`);
  }
  const { nodeName = '' } = pod.spec;
  if (nodeName === '') return { is: 'waiting', for: `${what} has no node yet` };
  if (nodeName !== node) return { is: 'elsewhere', node: nodeName };
  if (isWaitOver(pod)) {
    return over('does not wait for its data any more: its init container restore-wait has ended');
  }
  if (waitStatusOf(pod)?.state?.running === undefined) {
    return { is: 'waiting', for: `init container ${WAIT_CONTAINER} of ${what} does not run yet` };
  }
  return { is: 'ready', node };
}

/** Where the kubelet keeps its pods on the node. Throws `FS_BACKUP_DISABLED`. */
function hostPodsOf({ spec, annotations }: Template, daemonSet: string): string {
  const volume = spec.volumes?.find(({ name }) => name === HOST_PODS);
  const named = (volume?.hostPath as { path?: string } | undefined)?.path;
  const path = (annotations[HOST_PODS_ANNOTATION] ?? named)?.replace(/\/+$/, '');
  if (path) return path;
  throw new CodedError(
    'FS_BACKUP_DISABLED',
    `file-system backup is switched off: the pod template of DaemonSet ${daemonSet} has no annotation ${HOST_PODS_ANNOTATION} ` +
      `and no volume "${HOST_PODS}". Set the annotation to the kubelet's directory of pods, such as /var/lib/kubelet/pods (docs/file-system-backup.md)`,
  );
}

async function assertLinux(client: KubeClient, node: string, signal: AbortSignal): Promise<void> {
  const found = await client.find(NODES, { name: node }, { signal });
  if (found?.metadata.labels?.['kubernetes.io/os'] !== 'windows') return;
  throw new CodedError(
    'WINDOWS_UNSUPPORTED',
    `node ${node} is a Windows node: its volumes are not supported`,
  );
}

/**
 * What a container waits for before its pod's volumes are mounted; all that it may wait for later
 * comes after that.
 */
const BEFORE_MOUNT = ['ContainerCreating', 'PodInitializing'];

/** Where nothing is known of its containers, its phase counts. */
function mayBeUnmounted({ status }: Pod): boolean {
  const containers = [
    ...(status?.initContainerStatuses ?? []),
    ...(status?.containerStatuses ?? []),
  ];
  const isPastMount = ({ state }: ContainerStatus): boolean =>
    state?.running !== undefined ||
    (state?.waiting !== undefined && !BEFORE_MOUNT.includes(state.waiting.reason ?? ''));
  return containers.length > 0 && !containers.some(isPastMount);
}

/**
 * Waits until the pod runs, or some seconds. Throws `EXPOSE_FAILED` where its node says that there
 * is no such directory, though the volume is mounted. Where it is not, whoever looks at the pod
 * later finds out.
 */
async function assertDirectoryFound(
  client: KubeClient,
  made: Pod,
  isMounted: () => Promise<boolean>,
  signal: AbortSignal,
): Promise<void> {
  const { namespace, name, uid } = made.metadata;
  let told: string | undefined;
  for (const [i, pauseMs] of LOOKS_MS.entries()) {
    await sleep(pauseMs, undefined, { signal });
    const pod = await client.find(PODS, { namespace, name }, { signal });
    const phase = pod?.status?.phase ?? 'Pending';
    if (pod?.metadata.uid !== uid || phase !== 'Pending') return;
    if (i === 0) continue;
    const events = await client.list(EVENTS, {
      namespace,
      fieldSelector: `involvedObject.uid=${uid}`,
      signal,
    });
    const refusal = events.find(
      ({ reason, message = '' }) => reason === 'FailedMount' && NO_DIRECTORY.test(message),
    );
    if (!refusal || !(await isMounted())) {
      told = undefined;
      continue;
    }
    // An Event stays, also when the next try went well: one that was told again since is another
    // refusal.
    const { resourceVersion } = refusal.metadata;
    told ??= resourceVersion;
    if (told !== resourceVersion) {
      const path = made.spec.volumes?.find((volume) => volume.hostPath !== undefined)?.hostPath as
        { path?: string } | undefined;
      throw new CodedError(
        'EXPOSE_FAILED',
        `expected one matching path: ${path?.path ?? ''}, got 0: the kubelet says: ${refusal.message ?? ''}`,
      );
    }
  }
}
