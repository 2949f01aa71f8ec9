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
import { step } from './step-errors.ts';
import { deletePod, removePodAndVolumes, settleAll, volumesOf } from './volumes.ts';
import { isWaitOver, WAIT_CONTAINER, waitStatusOf } from './wait-container.ts';

type PodVolume = PodVolumeBackup | PodVolumeRestore;

/** Velero's volume with the kubelet's directory of pods (pkg/nodeagent/node_agent.go). */
const HOST_PODS = 'host-pods';
/**
 * Replaces that volume by an annotation on the pod template. The volume would require rights that
 * the agents' own pods do not need (OpenShift refuses them).
 */
const HOST_PODS_ANNOTATION = 'longshore.io/host-pods';
/**
 * Pauses before each look whether the kubelet finds the directory. Most pods run at the first look,
 * and a thousand agents look. The kubelet must report the missing directory twice, because a
 * restarted node mounts volumes one by one. Our choice.
 */
const LOOKS_MS = [1000, 2000, 4000, 8000, 8000];
/** First and longest pause between looks at a pod whose volumes are not mounted yet. Our choice. */
const MOUNTED_MS = 1000;
const MOUNTED_MS_MAX = 10_000;
/** The kubelet's message for a missing directory. Its other mount errors may pass. */
const NO_DIRECTORY = /hostPath type check failed/;

/** Whether a restore may start, must wait, or can never succeed. */
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
 * Mounts the node directory of another pod's volume into a hosting pod, and no other directory.
 * Each step reuses existing objects, so it may be repeated after a crash at any point. Velero:
 * pkg/exposer/pod_volume.go.
 */
export class PodVolumeExposer<V extends PodVolume> {
  readonly #options: ExposerOptions;
  readonly #kind: PodVolumeKind<V>;

  constructor(options: ExposerOptions, kind: PodVolumeKind<V>) {
    this.#options = options;
    this.#kind = kind;
  }

  /**
   * Returns once the pod is created and its node does not refuse the directory. `node` is this
   * agent's node. Errors name the failed step and object.
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
        // A later look at the pod finds the problem.
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
   * The pod of the volume, as named by the CR, once its volumes are mounted. After a restart of the
   * node this waits for the storage's driver. A new pod of the same name has other data.
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
   * Why some volumes of the pod may not be mounted yet, in words. The kubelet mounts all of them
   * before it starts a container.
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
   * The pod of the volume, or the reason why the volume cannot be moved, in words. `isMoving`: a
   * backup may read to the end while the pod terminates.
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
   * Whether the pod of a restore still waits. If its init container has succeeded, all its volumes
   * are restored, and each mover has done its last step.
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

  /** Volumes of the cache's claim. */
  volumesOf(movement: V): Promise<string[]> {
    if (this.#kind.kind === 'pod-volume-backup') return Promise.resolve([]);
    const { client, namespace } = this.#options;
    return volumesOf(client, movement, [cacheClaimRef(namespace, movement)]);
  }

  /** Deletes the CR's objects. True once they are gone. Failures are logged; call again. */
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

/** Whether a restore may start (Velero: pkg/controller/pod_volume_restore_controller.go). */
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

/** The kubelet's directory of pods on the node. Throws `FS_BACKUP_DISABLED`. */
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

/** Waiting reasons before a pod's volumes are mounted. All other reasons come later. */
const BEFORE_MOUNT = ['ContainerCreating', 'PodInitializing'];

/** If no container status is known, the phase decides. */
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
 * Waits until the pod runs, or some seconds. Throws `EXPOSE_FAILED` if the node reports a missing
 * directory although the volume is mounted. If the volume is not mounted, a later look at the pod
 * finds that.
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
    // An Event remains after a later try has succeeded. Only a new version of it is a second
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
