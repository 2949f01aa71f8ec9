import type { BackupVolumeInfo } from '../../../archive/index.ts';
import type { Operation } from '../../../item-operations/index.ts';
import type { DataUpload, KubeObject, PodVolumeBackup } from '../../../kube/index.ts';

/** Facts about volumes after all operations have ended. */
export interface VolumeFacts {
  readonly operations: readonly Operation[];
  readonly dataUploads: readonly DataUpload[];
  readonly podVolumeBackups: readonly PodVolumeBackup[];
}

/**
 * Final volume infos of moved volumes, snapshots, and pod volume backups. Matches them as Velero
 * does (pkg/controller/backup_finalizer_controller.go and internal/volume, v1.18.3). Infos without
 * new facts stay unchanged.
 */
export const updatedVolumeInfos = (
  infos: readonly BackupVolumeInfo[],
  facts: VolumeFacts,
): BackupVolumeInfo[] => {
  const uploads = new Map(
    facts.dataUploads.map((upload) => [
      `${upload.spec.sourceNamespace}/${upload.spec.sourcePVC}`,
      upload,
    ]),
  );
  const podVolumes = new Map(
    facts.podVolumeBackups.map((backup) => [
      podVolumeKey(backup.spec.pod, backup.spec.volume),
      backup,
    ]),
  );
  const operations = new Map(
    facts.operations.map((operation) => [operation.spec.operationID, operation]),
  );
  return infos.map((info) => {
    const { snapshotDataMovementInfo, csiSnapshotInfo, pvbInfo, pvcNamespace, pvcName } = info;
    if (snapshotDataMovementInfo) {
      const upload = uploads.get(`${pvcNamespace ?? ''}/${pvcName ?? ''}`);
      return upload ? withUpload(info, upload) : info;
    }
    if (pvbInfo) {
      const pod = { namespace: pvbInfo.podNamespace, name: pvbInfo.podName };
      const backup = podVolumes.get(podVolumeKey(pod, pvbInfo.volumeName));
      return backup ? withPodVolume(info, backup) : info;
    }
    const operation = operations.get(csiSnapshotInfo?.operationID ?? '');
    return operation && info.backupMethod === 'CSISnapshot' ? withSnapshot(info, operation) : info;
  });
};

const podVolumeKey = (
  { namespace = '', name = '' }: { namespace?: string | undefined; name?: string | undefined },
  volume = '',
): string => `${namespace}/${name}/${volume}`;

const resultOf = (isWell: boolean): { result: string } => ({
  result: isWell ? 'succeeded' : 'failed',
});

/** Names the rules that left paths out of a volume. Velero ignores this field. */
const noteOf = ({ phase, message }: MovementStatus): { note?: string } =>
  phase === 'Completed' && message ? { note: message } : {};

interface MovementStatus {
  readonly phase?: string | undefined;
  readonly message?: string | undefined;
}

function withUpload(info: BackupVolumeInfo, { spec, status = {} }: DataUpload): BackupVolumeInfo {
  const { completionTimestamp, snapshotID, progress, incrementalBytes, phase = '' } = status;
  return {
    ...info,
    completionTimestamp: completionTimestamp ?? info.completionTimestamp,
    ...resultOf(phase === 'Completed'),
    snapshotDataMovementInfo: {
      ...info.snapshotDataMovementInfo,
      snapshotHandle: snapshotID ?? '',
      retainedSnapshot: spec.csiSnapshot?.volumeSnapshot ?? '',
      size: progress?.totalBytes ?? 0,
      incrementalSize: incrementalBytes,
      Phase: phase,
    },
    ...noteOf(status),
  };
}

function withPodVolume(
  info: BackupVolumeInfo,
  { spec, status = {} }: PodVolumeBackup,
): BackupVolumeInfo {
  const { startTimestamp, completionTimestamp, snapshotID, progress, incrementalBytes, phase } =
    status;
  return {
    ...info,
    startTimestamp: startTimestamp ?? info.startTimestamp,
    completionTimestamp: completionTimestamp ?? info.completionTimestamp,
    ...resultOf(phase === 'Completed'),
    pvbInfo: {
      ...info.pvbInfo,
      snapshotHandle: snapshotID,
      size: progress?.totalBytes,
      incrementalSize: incrementalBytes,
      nodeName: spec.node,
      Phase: phase ?? '',
    },
    ...noteOf(status),
  };
}

const withSnapshot = (info: BackupVolumeInfo, { status }: Operation): BackupVolumeInfo => ({
  ...info,
  completionTimestamp: status.updated ?? info.completionTimestamp,
  ...resultOf((status.error ?? '') === ''),
});

/** Velero: pkg/backup/snapshots.go. */
export const csiSnapshotsCompleted = (operations: readonly Operation[]): number =>
  operations.filter(
    ({ spec: { resourceIdentifier: item }, status }) =>
      status.phase === 'Completed' &&
      item.Group === 'snapshot.storage.k8s.io' &&
      item.Resource === 'volumesnapshots',
  ).length;

/**
 * Stored objects with their current state, in their order. Deleted objects keep their last state.
 * New objects follow.
 */
export function updatedObjects(
  stored: readonly KubeObject[],
  now: readonly KubeObject[],
): KubeObject[] {
  const objects = new Map(stored.map((object) => [object.metadata.uid, object]));
  for (const object of now) objects.set(object.metadata.uid, object);
  return [...objects.values()];
}
