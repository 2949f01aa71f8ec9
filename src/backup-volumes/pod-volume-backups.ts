import { CodedError, isCode } from '../base/index.ts';
import type { BackupLog, StartedOperation } from '../backup/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  isMovementOver,
  type KubeClient,
  lastingContainers,
  NO_PARENT,
  NOT_IN_BACKUPS,
  type PersistentVolumeClaim,
  type Pod,
  POD_VOLUME_BACKUPS,
  PODS,
  type PodVolumeBackup,
  PVCS,
  validLabel,
  waitFor,
} from '../kube/index.ts';
import { EnsuredRepositories } from '../repository-access/index.ts';
import { podVolumeName } from './pod-volume-name.ts';

/** The action that answers for PodVolumeBackups, here and in a Velero server with our plugin. */
export const POD_VOLUME_ACTION = 'longshore.io/pod-volume-backup';

export interface PodVolumesOptions {
  readonly client: KubeClient;
  readonly backup: Backup;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** Time limit for a repository to be ready. */
  readonly resourceTimeoutMs: number;
  /** How long a pod's post hooks wait for its volumes. */
  readonly timeoutMs: number;
}

/** Result for the volumes of a pod. */
export interface PodVolumesResult {
  readonly operations: readonly StartedOperation[];
  /** Volume names with the reason. */
  readonly skipped: ReadonlyMap<string, string>;
  readonly made: readonly string[];
  /** Errors to report at the pod. */
  readonly errors: readonly unknown[];
}

const AGENT_LABELS = 'role=node-agent';

/** File-system backups of pod volumes, as operations. Only post hooks of the pod wait. */
export class PodVolumeBackups {
  readonly #options: PodVolumesOptions;
  readonly #repositories: EnsuredRepositories;
  /** Names of PodVolumeBackups by pod UID. */
  readonly #made = new Map<string, string[]>();

  constructor(options: PodVolumesOptions) {
    this.#options = options;
    const { client, backup, signal, resourceTimeoutMs } = options;
    const { namespace = '' } = backup.metadata;
    const { storageLocation = '' } = backup.spec;
    const query = { client, namespace, storageLocation, signal };
    this.#repositories = new EnsuredRepositories(query, resourceTimeoutMs);
  }

  /**
   * Creates a PodVolumeBackup for each given volume of the pod. Velero: pkg/podvolume/backupper.go,
   * BackupPodVolumes.
   */
  async begin(pod: Pod, volumes: readonly string[]): Promise<PodVolumesResult> {
    const skipped = new Map<string, string>();
    const { namespace = '', name } = pod.metadata;
    const about = { resource: 'pods', namespace, name };
    const { log } = this.#options;
    const skipAll = (reason: unknown, errors: readonly unknown[]): PodVolumesResult => {
      const text = reason instanceof Error ? reason.message : String(reason);
      for (const volume of volumes) {
        log.warn(`Skip pod volume ${volume}`, { ...about, error: text });
        skipped.set(
          volume,
          `encountered a problem with backing up the PVC of pod ${namespace}/${name}: ${text}`,
        );
      }
      return { operations: [], skipped, made: [], errors };
    };
    // A pod that does not run has no files to read, so a missing PVC is not an error.
    const notRunning = whyNotRunning(pod);
    if (notRunning !== undefined) return skipAll(notRunning, []);
    const claims = await this.#claimsOf(pod);
    try {
      await this.#assertAgent(pod);
      await this.#repositories.ensure(namespace);
    } catch (error) {
      this.#options.signal.throwIfAborted();
      return skipAll(error, [...claims.errors, error]);
    }
    const operations: StartedOperation[] = [];
    const made: string[] = [];
    const errors = [...claims.errors];
    for (const volume of volumes) {
      const reason = whyNotRead(pod, volume);
      if (reason !== undefined) {
        log.warn(reason, about);
        skipped.set(volume, reason);
        continue;
      }
      // The lookup of its PVC failed, and that error is already reported.
      if (claims.unknown.has(volume)) continue;
      try {
        const { metadata } = await this.#create(pod, volume, claims.found.get(volume));
        made.push(volume);
        this.#note(pod.metadata.uid, metadata.name);
        operations.push({
          action: POD_VOLUME_ACTION,
          item: { group: '', resource: 'pods', namespace, name },
          operationId: metadata.name,
          postOperationItems: [],
        });
      } catch (error) {
        this.#options.signal.throwIfAborted();
        errors.push(error);
      }
    }
    return { operations, skipped, made, errors };
  }

  #note(podUid: string, name: string): void {
    const names = this.#made.get(podUid) ?? [];
    if (!names.includes(name)) names.push(name);
    this.#made.set(podUid, names);
  }

  /** Adds names from an earlier try. */
  resume(podUid: string, names: readonly string[]): void {
    for (const name of names) this.#note(podUid, name);
  }

  namesOf(podUid: string): readonly string[] {
    return this.#made.get(podUid) ?? [];
  }

  /** All PodVolumeBackups of this backup, in their current state. */
  async list(): Promise<PodVolumeBackup[]> {
    if (this.#made.size === 0) return [];
    const { client, backup, signal } = this.#options;
    const { namespace, uid } = backup.metadata;
    const labelSelector = `velero.io/backup-uid=${uid}`;
    return client.list(POD_VOLUME_BACKUPS, { namespace, labelSelector, signal });
  }

  /** Waits until the pod's PodVolumeBackups have ended or are deleted. Throws `PVB_TIMEOUT`. */
  async settled(pods: readonly Pod[], signal: AbortSignal): Promise<void> {
    const { client, backup, timeoutMs } = this.#options;
    const { namespace } = backup.metadata;
    const look = (now: PodVolumeBackup | undefined): true | undefined =>
      !now || isMovementOver(now.status?.phase) ? true : undefined;
    for (const name of pods.flatMap(({ metadata }) => this.namesOf(metadata.uid))) {
      try {
        const ref = { namespace, name };
        await waitFor(client, POD_VOLUME_BACKUPS, ref, look, { signal, timeoutMs });
      } catch (error) {
        if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
        const text = `the backup of a pod's volume has not ended in time: PodVolumeBackup ${name}`;
        throw new CodedError('PVB_TIMEOUT', text, { cause: error });
      }
    }
  }

  async #claimsOf(pod: Pod): Promise<{
    found: Map<string, PersistentVolumeClaim>;
    unknown: Set<string>;
    errors: unknown[];
  }> {
    const { client, signal } = this.#options;
    const found = new Map<string, PersistentVolumeClaim>();
    const unknown = new Set<string>();
    const errors: unknown[] = [];
    for (const { name: volume, persistentVolumeClaim: claim } of pod.spec.volumes ?? []) {
      if (!claim) continue;
      try {
        const ref = { namespace: pod.metadata.namespace, name: claim.claimName };
        found.set(volume, await client.get(PVCS, ref, { signal }));
      } catch (cause) {
        signal.throwIfAborted();
        unknown.add(volume);
        const text = 'error getting persistent volume claim for volume';
        errors.push(new CodedError('NO_PVC', `${text}: ${(cause as Error).message}`, { cause }));
      }
    }
    return { found, unknown, errors };
  }

  /** Messages are Velero's (pkg/nodeagent/node_agent.go). */
  async #assertAgent({ spec }: Pod): Promise<void> {
    const { client, backup, signal } = this.#options;
    const node = spec.nodeName ?? '';
    const { namespace } = backup.metadata;
    const agents = await client.list(PODS, {
      namespace,
      labelSelector: AGENT_LABELS,
      signal,
      fieldSelector: `spec.nodeName=${node}`,
    });
    if (agents.some(({ status }) => status?.phase === 'Running')) return;
    throw new CodedError('NO_AGENT', `daemonset pod not found in running state in node ${node}`);
  }

  /** The name is the same in each try, so a restart finds the existing object. */
  async #create(
    pod: Pod,
    volume: string,
    claim: PersistentVolumeClaim | undefined,
  ): Promise<PodVolumeBackup> {
    const { client, backup, signal } = this.#options;
    const made = podVolumeBackupOf(backup, pod, volume, claim);
    try {
      return await client.create(POD_VOLUME_BACKUPS, made, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
      const ref = { namespace: backup.metadata.namespace, name: made.metadata.name };
      return await client.get(POD_VOLUME_BACKUPS, ref, { signal });
    }
  }
}

function podVolumeBackupOf(
  { metadata: backup, spec }: Backup,
  pod: Pod,
  volume: string,
  claim: PersistentVolumeClaim | undefined,
) {
  const { namespace = '', name, uid } = pod.metadata;
  const { storageLocation = '' } = spec;
  const { uploaderConfig } = spec as { uploaderConfig?: { parallelFilesUpload?: number } | null };
  const parallel = uploaderConfig?.parallelFilesUpload ?? 0;
  const pvc = claim?.metadata;
  return {
    metadata: {
      namespace: backup.namespace ?? '',
      name: podVolumeName(backup.name, `${backup.uid} ${uid} ${volume}`),
      ownerReferences: [
        {
          apiVersion: 'velero.io/v1',
          kind: 'Backup',
          controller: true,
          name: backup.name,
          uid: backup.uid,
        },
      ],
      labels: {
        [BACKUP_NAME]: validLabel(backup.name),
        [BACKUP_UID]: backup.uid,
        ...NOT_IN_BACKUPS,
        ...(pvc && { 'velero.io/pvc-uid': pvc.uid }),
      },
      // Restores read it to find PVCs with a file-system backup.
      ...(pvc && { annotations: { 'velero.io/pvc-name': pvc.name } }),
    },
    spec: {
      node: pod.spec.nodeName ?? '',
      pod: { kind: 'Pod', namespace, name, uid },
      volume,
      tags: {
        backup: backup.name,
        'backup-uid': backup.uid,
        pod: name,
        'pod-uid': uid,
        ns: namespace,
        volume,
        ...(pvc && { 'pvc-uid': pvc.uid }),
      },
      backupStorageLocation: storageLocation,
      repoIdentifier: '',
      uploaderType: 'kopia' as const,
      ...(spec.backupType === 'Full' && { parentSnapshot: NO_PARENT }),
      ...(parallel > 0 && { uploaderSettings: { ParallelFilesUpload: String(parallel) } }),
    },
  };
}

/** Velero: pkg/util/kube/pod.go, IsPodRunning. */
function whyNotRunning({ metadata, spec, status }: Pod): string | undefined {
  const { namespace = '', name } = metadata;
  const phase = status?.phase ?? '';
  const which = `name=${name}, namespace=${namespace}, phase=${phase}`;
  if ((spec.nodeName ?? '') === '') return `pod is not scheduled, ${which}`;
  if (phase !== 'Running') {
    return `pod is not in the expected status, ${which}: pod is not running`;
  }
  return metadata.deletionTimestamp === undefined ? undefined : `pod is being terminated, ${which}`;
}

function whyNotRead({ metadata, spec }: Pod, volume: string): string | undefined {
  const { namespace = '', name } = metadata;
  const isIn = (list: 'volumeMounts' | 'volumeDevices'): boolean =>
    lastingContainers(spec).some((container) =>
      ((container as { [key in typeof list]?: { name: string }[] })[list] ?? []).some(
        (each) => each.name === volume,
      ),
    );
  const found = (spec.volumes ?? []).find((each) => each.name === volume);
  if (!found) return `No volume named ${volume} found in pod ${namespace}/${name}, skipping`;
  if ('hostPath' in found && found.hostPath) {
    return `Volume ${volume} in pod ${namespace}/${name} is a hostPath volume which is not supported for pod volume backup, skipping`;
  }
  if (isIn('volumeDevices')) {
    return `volume ${volume} declared in pod ${namespace}/${name} is a block volume. Block volumes are not supported for fs backup, skipping`;
  }
  return isIn('volumeMounts')
    ? undefined
    : `volume ${volume} is declared in pod ${namespace}/${name} but not mounted by any container, skipping`;
}
