import type { BackupLog } from '../backup/index.ts';
import { CodedError, isCode, messageOf } from '../base/index.ts';
import {
  type KubeClient,
  NOT_IN_BACKUPS,
  type PersistentVolumeClaim,
  type Pod,
  POD_VOLUME_RESTORES,
  PODS,
  type PodVolumeRestore,
  PVCS,
  type Restore,
  RESTORE_NAME,
  validLabel,
} from '../kube/index.ts';
import { EnsuredRepositories } from '../repository-access/index.ts';
import { podVolumeName } from '../backup-volumes/index.ts';
import { type FileBackup, fileBackupsOf } from './file-backups.ts';
import type { FileBackups } from './shared-claims.ts';

/** The action that reports the progress of PodVolumeRestores. */
export const POD_VOLUME_RESTORE_ACTION = 'longshore.io/pod-volume-restore';

/** A started operation. {@link POD_VOLUME_RESTORE_ACTION} reports its progress. */
export interface PodVolumeOperation {
  readonly action: string;
  /** The restored pod. */
  readonly item: {
    readonly group: string;
    readonly resource: string;
    readonly namespace: string;
    readonly name: string;
  };
  readonly operationId: string;
  /** In the namespace of the pod; undefined if the volume has no claim. */
  readonly claim?: string;
}

export interface PodVolumeRestoresOptions {
  readonly client: KubeClient;
  readonly restore: Restore;
  /** The backup's current location. */
  readonly storageLocation: string;
  /** The file backups of the restore's backup. The wait-container action uses the same ones. */
  readonly files: Pick<FileBackups, 'of' | 'volumesOf'>;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** How long a repository may take to be ready. */
  readonly resourceTimeoutMs: number;
  /** Default: the repositories of the cluster. */
  readonly repositories?: Pick<EnsuredRepositories, 'ensure'>;
}

const AGENT_LABELS = 'role=node-agent';

/**
 * Restores the files of pods' volumes. Each restore is an operation that does not block the run, so
 * a hanging pod delays nothing. Velero: pkg/podvolume/restorer.go, RestorePodVolumes. Velero waits
 * for all of them before a restore ends.
 */
export class PodVolumeRestores {
  readonly #options: PodVolumeRestoresOptions;
  readonly #repositories: Pick<EnsuredRepositories, 'ensure'>;
  #agents: Promise<void> | undefined;

  constructor(options: PodVolumeRestoresOptions) {
    this.#options = options;
    const { client, restore, storageLocation, signal, resourceTimeoutMs } = options;
    const { namespace = '' } = restore.metadata;
    const query = { client, namespace, storageLocation, signal };
    this.#repositories = options.repositories ?? new EnsuredRepositories(query, resourceTimeoutMs);
  }

  filesOf(pod: Pod, namespace: string): string[] {
    return this.#options.files.volumesOf(pod, namespace);
  }

  /**
   * Creates a PodVolumeRestore for each volume with files, for a pod that this restore created.
   * `namespace`: the pod's in the backup. Returns errors of the pod, and starts the other
   * operations. Repeatable: it finds the objects that it created.
   */
  async begin(
    pod: Pod,
    namespace: string,
  ): Promise<{ readonly operations: PodVolumeOperation[]; readonly errors: Error[] }> {
    const { signal } = this.#options;
    const found = fileBackupsOf(pod, namespace, await this.#options.files.of(pod, namespace));
    const operations: PodVolumeOperation[] = [];
    if (found.size === 0) return { operations, errors: [] };
    try {
      assertReadable(found);
      await this.#assertAgents();
      await this.#repositories.ensure(namespace);
    } catch (error) {
      signal.throwIfAborted();
      return { operations, errors: [aboutPod(pod, error)] };
    }
    const errors: Error[] = [];
    for (const [volume, backup] of found) {
      try {
        const claim = await this.#claimOf(pod, volume);
        this.#sayWhatStays(pod, claim);
        const { metadata } = await this.#create(pod, { volume, backup, claim, namespace });
        const name = claim?.metadata.name;
        const operation = operationOf(pod, metadata.name);
        operations.push(name === undefined ? operation : { ...operation, claim: name });
      } catch (error) {
        signal.throwIfAborted();
        errors.push(aboutPod(pod, error));
      }
    }
    return { operations, errors };
  }

  /** All PodVolumeRestores of this restore, in their current state. Its volume infos need them. */
  async list(): Promise<PodVolumeRestore[]> {
    const { client, restore, signal } = this.#options;
    const { namespace, uid } = restore.metadata;
    const labelSelector = `velero.io/restore-uid=${uid}`;
    return client.list(POD_VOLUME_RESTORES, { namespace, labelSelector, signal });
  }

  /** Without an agent, no PodVolumeRestore would start. Checked again only after a failure. */
  async #assertAgents(): Promise<void> {
    const { client, restore, signal } = this.#options;
    const { namespace } = restore.metadata;
    this.#agents ??= (async () => {
      const agents = await client.listPage(PODS, {
        namespace,
        labelSelector: AGENT_LABELS,
        signal,
        limit: 1,
        fieldSelector: 'status.phase=Running',
      });
      if (agents.items.length > 0) return;
      const text =
        'error to check node agent status: daemonset not found, or none of its pods is running: install the node-agent';
      throw new CodedError('NO_AGENT', text);
    })();
    try {
      await this.#agents;
    } catch (error) {
      this.#agents = undefined;
      throw error;
    }
  }

  /** A repository belongs to a namespace of volumes. */
  async #claimOf(pod: Pod, volume: string): Promise<PersistentVolumeClaim | undefined> {
    const { client, signal } = this.#options;
    const found = pod.spec.volumes?.find(({ name }) => name === volume);
    if (!found?.persistentVolumeClaim) return undefined;
    try {
      const name = found.persistentVolumeClaim.claimName;
      return await client.get(PVCS, { namespace: pod.metadata.namespace, name }, { signal });
    } catch (cause) {
      signal.throwIfAborted();
      const text = `error getting persistent volume claim for volume: ${messageOf(cause)}`;
      throw new CodedError('NO_PVC', text, { cause });
    }
  }

  /** Volumes that this restore created were empty before. */
  #sayWhatStays({ metadata: pod }: Pod, claim: PersistentVolumeClaim | undefined): void {
    const { restore, log } = this.#options;
    const { existingVolumeDataPolicy: policy = '', uploaderConfig } = restore.spec;
    const isAsked = policy === 'full' || policy === 'incremental';
    if (!isAsked || uploaderConfig?.deleteExtraFiles !== true || !claim) return;
    const { name, creationTimestamp } = claim.metadata;
    if (Date.parse(creationTimestamp) >= Date.parse(restore.metadata.creationTimestamp)) return;
    const { namespace = '' } = pod;
    const text = `the files of PersistentVolumeClaim ${namespace}/${name} are written over what is there, and files that the backup does not have stay: they come with their pod, where deleteExtraFiles has no effect`;
    log.warn(text, { resource: 'pods', namespace, name: pod.name });
  }

  async #create(pod: Pod, what: RestoredVolume): Promise<PodVolumeRestore> {
    const { client, restore, storageLocation, signal } = this.#options;
    const made = podVolumeRestoreOf(restore, storageLocation, pod, what);
    try {
      return await client.create(POD_VOLUME_RESTORES, made, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
      const ref = { namespace: restore.metadata.namespace, name: made.metadata.name };
      return await client.get(POD_VOLUME_RESTORES, ref, { signal });
    }
  }
}

interface RestoredVolume {
  readonly volume: string;
  readonly backup: FileBackup;
  readonly claim: PersistentVolumeClaim | undefined;
  /** The pod's namespace in the backup, which names the repository of the data. */
  readonly namespace: string;
}

/**
 * Agents of 1.18 and later have no restic, so they cannot read its backups. Velero leaves these to
 * its node-agent, which Longshore does not use.
 */
function assertReadable(found: ReadonlyMap<string, FileBackup>): void {
  const old = [...found].filter(([, { uploaderType }]) => uploaderType !== 'kopia');
  if (old.length === 0) return;
  const names = old.map(([volume]) => volume).join(', ');
  const types = [...new Set(old.map(([, { uploaderType }]) => uploaderType))].join(', ');
  throw new CodedError(
    'UNKNOWN_UPLOADER',
    `the volumes ${names} were backed up by ${types}, which cannot be read here: restore them with the Velero that made the backup`,
  );
}

function aboutPod({ metadata }: Pod, cause: unknown): Error {
  const { namespace = '', name } = metadata;
  const text = `unable to restore the volumes of pod ${namespace}/${name}: ${messageOf(cause)}`;
  return new CodedError('POD_VOLUMES_FAILED', text, { cause });
}

const operationOf = ({ metadata }: Pod, operationId: string): PodVolumeOperation => ({
  action: POD_VOLUME_RESTORE_ACTION,
  item: {
    group: '',
    resource: 'pods',
    namespace: metadata.namespace ?? '',
    name: metadata.name,
  },
  operationId,
});

function podVolumeRestoreOf(
  { metadata: restore, spec }: Restore,
  backupStorageLocation: string,
  pod: Pod,
  { volume, backup, claim, namespace: sourceNamespace }: RestoredVolume,
) {
  const { namespace = '', name, uid } = pod.metadata;
  const settings = settingsOf(spec);
  const policy = spec.existingVolumeDataPolicy ?? '';
  return {
    metadata: {
      namespace: restore.namespace ?? '',
      name: podVolumeName(restore.name, `${restore.uid} ${uid} ${volume}`),
      ownerReferences: [
        {
          apiVersion: 'velero.io/v1',
          kind: 'Restore',
          controller: true,
          name: restore.name,
          uid: restore.uid,
        },
      ],
      labels: {
        [RESTORE_NAME]: validLabel(restore.name),
        'velero.io/restore-uid': restore.uid,
        ...NOT_IN_BACKUPS,
        // Agents find the PodVolumeRestores of a pod by this label.
        'velero.io/pod-uid': uid,
        ...(claim && { 'velero.io/pvc-uid': claim.metadata.uid }),
      },
    },
    spec: {
      pod: { kind: 'Pod', namespace, name, uid },
      volume,
      backupStorageLocation,
      repoIdentifier: '',
      // Velero 1.19 requires it. Existing files are overwritten in any case.
      restoreType: ['full', 'incremental'].includes(policy) ? policy : '',
      uploaderType: 'kopia' as const,
      snapshotID: backup.snapshotId,
      sourceNamespace,
      ...(backup.size > 0 && { snapshotSize: backup.size }),
      ...(settings && { uploaderSettings: settings }),
    },
  };
}

/** Velero: pkg/uploader/util, StoreRestoreConfig. */
function settingsOf(spec: Restore['spec']): Record<string, string> | undefined {
  const { uploaderConfig } = spec;
  if (!uploaderConfig) return undefined;
  const { writeSparseFiles, parallelFilesDownload = 0 } = uploaderConfig;
  return {
    WriteSparseFiles: String(writeSparseFiles === true),
    ...(parallelFilesDownload > 0 && { ParallelFilesDownload: String(parallelFilesDownload) }),
  };
}

/** Begins like Velero's names. Repeated calls give the same name. */
