import type { BackupVolumeInfo } from '../../archive/index.ts';
import type { Operation } from '../../item-operations/index.ts';
import type { DataUpload, PodVolumeBackup } from '../../kube/index.ts';

export interface VolumesNow {
  readonly uploads: readonly DataUpload[];
  readonly podVolumeBackups: readonly PodVolumeBackup[];
  readonly operations: readonly Operation[];
}

/** What is known of volumes once all operations are over. Velero: pkg/backup/backup.go, updateVolumeInfos. */
export function updatedVolumeInfos(
  infos: readonly BackupVolumeInfo[],
  { uploads, podVolumeBackups, operations }: VolumesNow,
): BackupVolumeInfo[] {
  const byPvc = new Map(
    uploads.map((upload) => [`${upload.spec.sourceNamespace}/${upload.spec.sourcePVC}`, upload]),
  );
  const byVolume = new Map(
    podVolumeBackups.map((each) => [
      `${each.spec.pod.namespace ?? ''}/${each.spec.pod.name ?? ''}/${each.spec.volume}`,
      each,
    ]),
  );
  const byId = new Map(operations.map((operation) => [operation.spec.operationID, operation]));
  return infos.map((info) => {
    const upload = byPvc.get(`${info.pvcNamespace ?? ''}/${info.pvcName ?? ''}`);
    if (info.snapshotDataMovementInfo && upload) return withUpload(info, upload);
    const { pvbInfo, csiSnapshotInfo } = info;
    if (pvbInfo) {
      const { podNamespace = '', podName = '', volumeName = '' } = pvbInfo;
      const made = byVolume.get(`${podNamespace}/${podName}/${volumeName}`);
      return made ? withPodVolume(info, made) : info;
    }
    const operation =
      info.backupMethod === 'CSISnapshot' && csiSnapshotInfo
        ? byId.get(csiSnapshotInfo.operationID ?? '')
        : undefined;
    if (!operation) return info;
    const { updated, error = '' } = operation.status;
    return {
      ...info,
      ...(updated !== undefined && { completionTimestamp: updated }),
      result: error === '' ? 'succeeded' : 'failed',
    };
  });
}

function withUpload(info: BackupVolumeInfo, { spec, status = {} }: DataUpload): BackupVolumeInfo {
  const { phase, snapshotID, progress, completionTimestamp } = status;
  const { incrementalBytes } = status as { incrementalBytes?: number };
  return {
    ...info,
    ...(completionTimestamp && { completionTimestamp }),
    result: phase === 'Completed' ? 'succeeded' : 'failed',
    snapshotDataMovementInfo: {
      ...info.snapshotDataMovementInfo,
      snapshotHandle: snapshotID ?? '',
      retainedSnapshot: spec.csiSnapshot?.volumeSnapshot ?? '',
      size: progress?.totalBytes ?? 0,
      ...(incrementalBytes !== undefined && { incrementalSize: incrementalBytes }),
      Phase: phase ?? '',
    },
  };
}

export function withPodVolume(
  info: BackupVolumeInfo,
  { spec, status = {} }: PodVolumeBackup,
): BackupVolumeInfo {
  const { phase, snapshotID, progress, completionTimestamp } = status;
  const { incrementalBytes } = status as { incrementalBytes?: number };
  return {
    ...info,
    ...(completionTimestamp && { completionTimestamp }),
    result: phase === 'Completed' ? 'succeeded' : 'failed',
    pvbInfo: {
      ...info.pvbInfo,
      ...(snapshotID !== undefined && { snapshotHandle: snapshotID }),
      size: progress?.totalBytes ?? 0,
      ...(incrementalBytes !== undefined && { incrementalSize: incrementalBytes }),
      nodeName: spec.node,
      Phase: phase ?? '',
    },
  };
}
