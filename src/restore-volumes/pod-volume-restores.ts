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

/** The action that is asked about PodVolumeRestores. */
export const POD_VOLUME_RESTORE_ACTION = 'longshore.io/pod-volume-restore';

/** One that was begun: its progress is asked of {@link POD_VOLUME_RESTORE_ACTION}. */
export interface PodVolumeOperation {
  readonly action: string;
  /** The pod, where it is restored to. */
  readonly item: {
    readonly group: string;
    readonly resource: string;
    readonly namespace: string;
    readonly name: string;
  };
  readonly operationId: string;
  /** In the namespace of the pod; undefined for a volume that is none of a claim. */
  readonly claim?: string;
}

export interface PodVolumeRestoresOptions {
  readonly client: KubeClient;
  readonly restore: Restore;
  /** The backup's location as it is now. */
  readonly storageLocation: string;
  /** Of the restore's backup: the action that makes pods wait asks for the same. */
  readonly files: Pick<FileBackups, 'of' | 'volumesOf'>;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** How long a repository may take to be there. */
  readonly resourceTimeoutMs: number;
  /** Left out: the cluster's. */
  readonly repositories?: Pick<EnsuredRepositories, 'ensure'>;
}

const AGENT_LABELS = 'role=node-agent';

/**
 * Restores of pods' volumes by their files, each an operation: nobody waits for one, so that a pod
 * that hangs holds up nothing. Velero: pkg/podvolume/restorer.go, RestorePodVolumes; it waits for
 * all of them before a restore is over.
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
   * Makes one for each volume of a pod that was created by this restore, and whose backup has its
   * files. `namespace`: the pod's in the backup. Errors are of the pod; what could be begun is
   * begun. Done again, it finds what it made.
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

  /** All that this restore has made, as they are now: for its volume infos. */
  async list(): Promise<PodVolumeRestore[]> {
    const { client, restore, signal } = this.#options;
    const { namespace, uid } = restore.metadata;
    const labelSelector = `velero.io/restore-uid=${uid}`;
    return client.list(POD_VOLUME_RESTORES, { namespace, labelSelector, signal });
  }

  /** Without any agent nothing would begin any of them. Asked once, unless there is none. */
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

  /** One repository for each namespace of volumes. */
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

  /** What this restore made is empty before. */
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
  /** The pod's in the backup: it says in which repository the data are. */
  readonly namespace: string;
}

/**
 * No agent of 1.18 and later without restic can read what it has written. Velero leaves these to
 * its node-agent, which ours is not.
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
        // Agents find by it what is for a pod.
        'velero.io/pod-uid': uid,
        ...(claim && { 'velero.io/pvc-uid': claim.metadata.uid }),
      },
    },
    spec: {
      pod: { kind: 'Pod', namespace, name, uid },
      volume,
      backupStorageLocation,
      repoIdentifier: '',
      // Velero 1.19 requires it. What is there is overwritten in any case.
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

/** Begins as Velero's do; the same each time that it is made. */
