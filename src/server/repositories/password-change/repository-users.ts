import { isCode } from '../../../base/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  DELETE_BACKUP_REQUESTS,
  isAnswered,
  isMovementOver,
  isNew,
  JOBS,
  type KubeClient,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type Resource,
} from '../../../kube/index.ts';
import { REPOSITORY_LABEL } from '../maintenance/job.ts';
import { outlineOf } from '../maintenance/job-outline.ts';

export interface VolumeRepository {
  readonly volumeNamespace: string;
  readonly storageLocation: string;
}

/**
 * Repositories that the backups of this cluster name. Velero imports PodVolumeBackups from another
 * cluster's bucket before a BackupRepository exists here.
 */
export async function repositoriesOfBackups(
  client: KubeClient,
  namespace: string,
  signal: AbortSignal,
): Promise<VolumeRepository[]> {
  const uploads = await client.list(DATA_UPLOADS, { namespace, signal });
  const podVolumes = await client.list(POD_VOLUME_BACKUPS, { namespace, signal });
  const found = [
    ...uploads.map(({ spec }) => [spec.sourceNamespace, spec.backupStorageLocation] as const),
    ...podVolumes.map(({ spec }) => [spec.pod.namespace, spec.backupStorageLocation] as const),
  ];
  const byName = new Map<string, VolumeRepository>();
  for (const [volumeNamespace, storageLocation] of found) {
    if (!volumeNamespace || !storageLocation) continue;
    byName.set(`${volumeNamespace}/${storageLocation}`, { volumeNamespace, storageLocation });
  }
  return [...byName.values()];
}

/**
 * Users of repositories, such as `DataUpload b1-x7k2p (InProgress)`. Kopia reads the format of an
 * open repository every 15 minutes, and fails if its password changed (Kopia:
 * repo/format/format_manager.go).
 */
export async function usersOfRepositories(
  client: KubeClient,
  namespace: string,
  signal: AbortSignal,
): Promise<string[]> {
  const list = async <T extends KubeObject>(
    resource: Resource<T>,
    labelSelector?: string,
  ): Promise<T[]> => {
    const scope = { namespace, ...(labelSelector !== undefined && { labelSelector }) };
    try {
      return await client.list(resource, { ...scope, signal });
    } catch (error) {
      // A cluster without Velero's server lacks this kind.
      if (isCode(error, 'KUBE_NOT_FOUND')) return [];
      throw error;
    }
  };
  const users: string[] = [];
  const kinds: readonly Resource<KubeObject>[] = [
    ...[DATA_UPLOADS, DATA_DOWNLOADS, POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES],
    DELETE_BACKUP_REQUESTS,
  ];
  for (const resource of kinds) {
    for (const object of await list(resource)) {
      const phase = (object as { status?: { phase?: string } }).status?.phase ?? '';
      // Objects that have not begun, or are over, use no repository.
      if (isNew(phase) || isMovementOver(phase) || isAnswered(phase)) continue;
      users.push(`${resource.kind} ${object.metadata.name} (${phase})`);
    }
  }
  for (const job of await list(JOBS, REPOSITORY_LABEL)) {
    if (outlineOf(job).end === undefined) users.push(`maintenance Job ${job.metadata.name}`);
  }
  return users;
}
