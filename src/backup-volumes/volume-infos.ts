import { quantityBytes } from '../base/index.ts';
import type { BackupVolumeInfo, NativeSnapshot } from '../archive/index.ts';
import {
  BACKUP_NAME,
  type DataUpload,
  type PodVolumeBackup,
  validLabel,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
} from '../kube/index.ts';
import { type SkippedVolume, skippedReason } from '../volume-policy/index.ts';
import type { UploadOperation } from './contract.ts';

/** Facts about a PersistentVolume in the backup. */
export interface NotedVolume {
  readonly name: string;
  readonly pvcName: string;
  readonly pvcNamespace: string;
  readonly reclaimPolicy: string;
  readonly labels: Readonly<Record<string, string>> | null;
  /** The volume has no CSI driver, and a snapshot was wanted. */
  readonly isNotCsi?: boolean;
  /** The rule or pod annotation that decided, if any. */
  readonly decidedBy?: string;
}

export interface InfoSources {
  readonly backupName: string;
  readonly volumes: readonly NotedVolume[];
  readonly skipped: readonly SkippedVolume[];
  /** Reasons for volumes that only a pod has: by {@link podVolumeKey}. */
  readonly decided?: ReadonlyMap<string, string>;
  readonly native: readonly NativeSnapshot[];
  readonly snapshots: readonly VolumeSnapshot[];
  readonly contents: readonly VolumeSnapshotContent[];
  /** Each PodVolumeBackup with its PVC, if it has one. */
  readonly podVolumes: readonly { readonly made: PodVolumeBackup; readonly claim: string }[];
  readonly uploads: readonly { readonly operation: UploadOperation; readonly upload: DataUpload }[];
  readonly operations: readonly UploadOperation[];
}

const SNAPSHOTS_TYPE = 'volumesnapshots';
/** Velero: internal/volume/volumes_information.go, FieldValueIsUnknown. */
const UNKNOWN = 'unknown';

/**
 * The entries of `<backup>-volumeinfo.json.gz`, in Velero's order. Skipped volumes come first, then
 * snapshots, PodVolumeBackups, moved volumes. A volume that is not in the backup has no entry,
 * except a pod volume without a PVC.
 */
export function volumeInfosOf(sources: InfoSources): BackupVolumeInfo[] {
  const byName = new Map(sources.volumes.map((volume) => [volume.name, volume]));
  const byClaim = new Map(
    sources.volumes.map((volume) => [`${volume.pvcNamespace}/${volume.pvcName}`, volume]),
  );
  return [
    ...sources.skipped.flatMap((each) => {
      const volume = byName.get(each.name);
      if (!volume) return [];
      const reason = { skipped: true, skippedReason: skippedReason(each) };
      return [{ ...volumeFields(volume), ...FLAGS, ...reason }];
    }),
    ...sources.native.flatMap((snapshot) => {
      const volume = byName.get(snapshot.spec.persistentVolumeName ?? '');
      return volume ? [nativeInfo(volume, snapshot)] : [];
    }),
    ...csiInfos(sources, byClaim),
    ...sources.podVolumes.flatMap((each) => podVolumeInfo(each, byClaim, sources.decided)),
    ...sources.uploads.flatMap(({ operation, upload }) => {
      const volume = byClaim.get(`${operation.item.namespace}/${operation.item.name}`);
      return volume ? [uploadInfo(volume, operation, upload)] : [];
    }),
  ];
}

const FLAGS = { snapshotDataMoved: false, preserveLocalSnapshot: false, skipped: false };

const volumeFields = ({
  name,
  pvcName,
  pvcNamespace,
  reclaimPolicy,
  labels,
  decidedBy,
}: NotedVolume) => ({
  pvcName,
  pvcNamespace,
  pvName: name,
  pvInfo: { reclaimPolicy, labels },
  // Our own field; Velero's reader ignores it.
  ...(decidedBy !== undefined && { decidedBy }),
});

export const podVolumeKey = (namespace: string, pod: string, volume: string): string =>
  `${namespace}/${pod}/${volume}`;

function nativeInfo(volume: NotedVolume, { spec, status = {} }: NativeSnapshot): BackupVolumeInfo {
  const { phase = '', providerSnapshotID = '' } = status;
  return {
    ...volumeFields(volume),
    ...FLAGS,
    backupMethod: 'NativeSnapshot',
    result: phase === 'Completed' ? 'succeeded' : 'failed',
    nativeSnapshotInfo: {
      snapshotHandle: providerSnapshotID,
      volumeType: spec.volumeType ?? '',
      volumeAZ: spec.volumeAZ ?? '',
      // Velero writes a number if the provider reports none.
      iops: String(spec.volumeIOPS ?? 0),
      Phase: phase,
    },
  };
}

function csiInfos(
  { backupName, snapshots, contents, operations }: InfoSources,
  byClaim: ReadonlyMap<string, NotedVolume>,
): BackupVolumeInfo[] {
  const contentOf = new Map(contents.map((content) => [content.metadata.name, content]));
  const operationOf = new Map(
    operations
      .filter(({ item }) => item.resource === SNAPSHOTS_TYPE)
      .map(({ item, operationId }) => [`${item.namespace}/${item.name}`, operationId]),
  );
  return snapshots.flatMap((snapshot) => {
    const { metadata, spec, status = {} } = snapshot;
    if (metadata.labels?.[BACKUP_NAME] !== validLabel(backupName)) return [];
    const { namespace = '', name } = metadata;
    const content = contentOf.get(status.boundVolumeSnapshotContentName ?? '');
    const volume = byClaim.get(`${namespace}/${spec.source.persistentVolumeClaimName ?? ''}`);
    if (!content || !volume) return [];
    const { snapshotHandle = '' } = content.status ?? {};
    const { creationTime } = status as { creationTime?: string };
    const operationID = operationOf.get(`${namespace}/${name}`) ?? '';
    const { volumeGroupSnapshotHandle } = (content.status ?? {}) as {
      volumeGroupSnapshotHandle?: string;
    };
    return [
      {
        ...volumeFields(volume),
        ...FLAGS,
        backupMethod: 'CSISnapshot',
        preserveLocalSnapshot: true,
        ...(creationTime !== undefined && { startTimestamp: creationTime }),
        csiSnapshotInfo: {
          snapshotHandle,
          size: status.restoreSize === undefined ? 0 : quantityBytes(status.restoreSize),
          driver: content.spec.driver,
          vscName: content.metadata.name,
          ...(operationID !== '' && { operationID }),
          ReadyToUse: status.readyToUse ?? null,
          ...(volumeGroupSnapshotHandle !== undefined && { volumeGroupSnapshotHandle }),
        },
      },
    ];
  });
}

function podVolumeInfo(
  { made, claim }: { readonly made: PodVolumeBackup; readonly claim: string },
  byClaim: ReadonlyMap<string, NotedVolume>,
  decided: ReadonlyMap<string, string> = new Map(),
): BackupVolumeInfo[] {
  const { spec, status = {} } = made;
  const { namespace: podNamespace = '', name: podName = '' } = spec.pod;
  const volume = byClaim.get(`${podNamespace}/${claim}`);
  if (claim !== '' && !volume) return [];
  const decidedBy = decided.get(podVolumeKey(podNamespace, podName, spec.volume));
  const { phase = '', snapshotID, progress, startTimestamp, completionTimestamp } = status;
  return [
    {
      ...(volume ? volumeFields(volume) : decidedBy !== undefined && { decidedBy }),
      ...FLAGS,
      backupMethod: 'PodVolumeBackup',
      ...(startTimestamp && { startTimestamp }),
      ...(completionTimestamp && { completionTimestamp }),
      result: phase === 'Completed' ? 'succeeded' : 'failed',
      pvbInfo: {
        ...(snapshotID !== undefined && { snapshotHandle: snapshotID }),
        size: progress?.totalBytes ?? 0,
        uploaderType: spec.uploaderType ?? '',
        volumeName: spec.volume,
        podName,
        podNamespace,
        nodeName: spec.node,
        Phase: phase,
      },
    },
  ];
}

function uploadInfo(
  volume: NotedVolume,
  { operationId }: UploadOperation,
  { spec, status = {} }: DataUpload,
): BackupVolumeInfo {
  const { startTimestamp, phase = '' } = status;
  const { datamover = '' } = spec;
  const driver = spec.csiSnapshot?.driver ?? '';
  return {
    ...volumeFields(volume),
    ...FLAGS,
    backupMethod: 'CSISnapshot',
    snapshotDataMoved: true,
    ...(startTimestamp && { startTimestamp }),
    csiSnapshotInfo: {
      snapshotHandle: UNKNOWN,
      vscName: UNKNOWN,
      operationID: UNKNOWN,
      size: 0,
      driver,
    },
    snapshotDataMovementInfo: {
      dataMover: datamover === '' ? 'velero' : datamover,
      uploaderType: 'kopia',
      operationID: operationId,
      Phase: phase,
    },
  };
}
