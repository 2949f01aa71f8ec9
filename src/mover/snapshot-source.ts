import type { SourceInfo } from '../snapshot/index.ts';

/** Part of the path of a snapshot's source, and a tag (Velero: pkg/uploader/types.go). */
export const REQUESTOR = 'snapshot-data-upload-download';
/** The requestor for volumes of running pods. */
export const POD_VOLUME_REQUESTOR = 'snapshot-pod-volume';
export const UPLOADER = 'kopia';
/**
 * UID of the DataUpload or PodVolumeBackup. A later mover of the same CR finds the snapshot of an
 * earlier mover that was killed or cut off.
 */
export const UPLOAD_TAG = 'longshore-data-upload';
/** Velero's client of every repository. */
export const REPOSITORY_CLIENT = { username: 'default', hostname: 'default' };

/** Source of a PVC's volume, in any repository of Velero. */
export const volumeSource = (namespace: string, pvc: string): SourceInfo => ({
  host: REPOSITORY_CLIENT.hostname,
  userName: REPOSITORY_CLIENT.username,
  path: `${REQUESTOR}/${UPLOADER}/${namespace}/${pvc}`,
});

/** Source of a pod's volume (Velero: pkg/podvolume/util.go, GetRealSource). */
export const podVolumeSource = (namespace: string, pod: string, volume: string): SourceInfo => ({
  host: REPOSITORY_CLIENT.hostname,
  userName: REPOSITORY_CLIENT.username,
  path: `${POD_VOLUME_REQUESTOR}/${UPLOADER}/${namespace}/${pod}/${volume}`,
});
