import type { Pod, PodVolumeBackup } from '../kube/index.ts';

/** What a volume of a pod can be restored from. */
export interface FileBackup {
  readonly snapshotId: string;
  /** In bytes; 0 where nobody knows. */
  readonly size: number;
  /** `kopia`, or `restic` of an old Velero. */
  readonly uploaderType: string;
}

/** Before Velero 1.0, pods said so themselves. */
const ANNOTATION = 'snapshot.velero.io/';

/**
 * The volumes of a restored pod that have a backup of their files, by name. `namespace`: the pod's
 * in the backup. As in Velero, the phase is not asked for, and what has no snapshot is none.
 * Velero: pkg/podvolume/util.go.
 */
export function fileBackupsOf(
  pod: Pod,
  namespace: string,
  backups: Iterable<PodVolumeBackup>,
): ReadonlyMap<string, FileBackup> {
  const found = new Map<string, FileBackup>();
  for (const { spec, status } of backups) {
    const isIts = spec.pod.name === pod.metadata.name && spec.pod.namespace === namespace;
    const snapshotId = status?.snapshotID ?? '';
    if (!isIts || snapshotId === '' || isMadeByKubelet(pod, spec.volume)) continue;
    const { uploaderType = '' } = spec;
    found.set(spec.volume, {
      snapshotId,
      size: status?.progress?.totalBytes ?? 0,
      uploaderType: uploaderType === '' ? 'restic' : uploaderType,
    });
  }
  if (found.size > 0) return found;
  for (const [key, snapshotId] of Object.entries(pod.metadata.annotations ?? {})) {
    if (!key.startsWith(ANNOTATION)) continue;
    found.set(key.slice(ANNOTATION.length), { snapshotId, size: 0, uploaderType: 'restic' });
  }
  return found;
}

function isMadeByKubelet({ spec }: Pod, volume: string): boolean {
  const found = spec.volumes?.find(({ name }) => name === volume);
  return found?.projected !== undefined || found?.downwardAPI !== undefined;
}
