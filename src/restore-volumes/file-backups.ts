import type { Pod, PodVolumeBackup } from '../kube/index.ts';

/** The file backup of a pod's volume. */
export interface FileBackup {
  readonly snapshotId: string;
  /** In bytes; 0 if unknown. */
  readonly size: number;
  /** `kopia`, or `restic` from an old Velero. */
  readonly uploaderType: string;
}

/** Before Velero 1.0, annotations of pods named their snapshots. */
const ANNOTATION = 'snapshot.velero.io/';

/**
 * The volumes of a restored pod that have file backups, by name. `namespace`: the pod's in the
 * backup. As in Velero, the phase does not matter, and a backup without a snapshot does not count.
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
