import type { SourceInfo } from '../snapshot/index.ts';

/**
 * Who asks: part of the path that snapshots are recorded under, and a tag (Velero:
 * pkg/uploader/types.go).
 */
export const REQUESTOR = 'snapshot-data-upload-download';
/** The same for volumes of running pods. */
export const POD_VOLUME_REQUESTOR = 'snapshot-pod-volume';
export const UPLOADER = 'kopia';
/**
 * UID of the DataUpload or PodVolumeBackup: one that is served again, after its mover was killed or
 * cut off, finds what that one finished.
 */
export const UPLOAD_TAG = 'longshore-data-upload';
/** Velero's client of every repository. */
export const REPOSITORY_CLIENT = { username: 'default', hostname: 'default' };

/** Under which source the volume of a PVC is recorded, in any repository of Velero. */
export const volumeSource = (namespace: string, pvc: string): SourceInfo => ({
  host: REPOSITORY_CLIENT.hostname,
  userName: REPOSITORY_CLIENT.username,
  path: `${REQUESTOR}/${UPLOADER}/${namespace}/${pvc}`,
});

/** The same for a volume of a pod (Velero: pkg/podvolume/util.go, GetRealSource). */
export const podVolumeSource = (namespace: string, pod: string, volume: string): SourceInfo => ({
  host: REPOSITORY_CLIENT.hostname,
  userName: REPOSITORY_CLIENT.username,
  path: `${POD_VOLUME_REQUESTOR}/${UPLOADER}/${namespace}/${pod}/${volume}`,
});
