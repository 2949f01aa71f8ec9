import { z } from 'zod';
import { always, goStruct, mapField, omitEmpty, optional } from '../base/index.ts';

/**
 * Velero's record of each volume of a backup or restore: internal/volume/volumes_information.go
 * (v1.18.3), with its order of fields. Fields of newer versions are kept.
 */
const CSI_SNAPSHOT = goStruct({
  snapshotHandle: always(''),
  size: always(0),
  driver: always(''),
  vscName: always(''),
  operationID: omitEmpty,
  // These have capitals, because Velero's struct has no tags for them.
  ReadyToUse: always(null),
  volumeGroupSnapshotHandle: omitEmpty,
});
const DATA_MOVEMENT = goStruct({
  dataMover: always(''),
  uploaderType: always(''),
  retainedSnapshot: omitEmpty,
  snapshotHandle: always(''),
  operationID: always(''),
  size: always(0),
  incrementalSize: omitEmpty,
  Phase: always(''),
});
const NATIVE_SNAPSHOT = goStruct({
  snapshotHandle: always(''),
  volumeType: always(''),
  volumeAZ: always(''),
  iops: always(''),
  Phase: always(''),
});
const POD_VOLUME = goStruct({
  snapshotHandle: omitEmpty,
  size: omitEmpty,
  incrementalSize: omitEmpty,
  uploaderType: always(''),
  volumeName: always(''),
  podName: always(''),
  podNamespace: always(''),
  nodeName: omitEmpty,
  Phase: always(''),
});
const PV = goStruct({ reclaimPolicy: always(''), labels: mapField(null) });

export const BACKUP_VOLUME_INFO = goStruct({
  pvcName: omitEmpty,
  pvcNamespace: omitEmpty,
  pvName: omitEmpty,
  backupMethod: omitEmpty,
  snapshotDataMoved: always(false),
  preserveLocalSnapshot: always(false),
  skipped: always(false),
  skippedReason: omitEmpty,
  startTimestamp: omitEmpty,
  completionTimestamp: omitEmpty,
  result: omitEmpty,
  csiSnapshotInfo: optional(CSI_SNAPSHOT),
  snapshotDataMovementInfo: optional(DATA_MOVEMENT),
  nativeSnapshotInfo: optional(NATIVE_SNAPSHOT),
  pvbInfo: optional(POD_VOLUME),
  pvInfo: optional(PV),
  decidedBy: omitEmpty,
  note: omitEmpty,
});
export const RESTORE_VOLUME_INFO = goStruct({
  pvcName: omitEmpty,
  pvcNamespace: omitEmpty,
  pvName: omitEmpty,
  restoreMethod: omitEmpty,
  snapshotDataMoved: always(false),
  csiSnapshotInfo: optional(CSI_SNAPSHOT),
  snapshotDataMovementInfo: optional(DATA_MOVEMENT),
  nativeSnapshotInfo: optional(NATIVE_SNAPSHOT),
  pvrInfo: optional(POD_VOLUME),
});

const amount = z.union([z.number(), z.bigint()]);
const methods = z.string();
const csiSnapshotSchema = z.looseObject({
  snapshotHandle: z.string().optional(),
  size: amount.optional(),
  driver: z.string().optional(),
  vscName: z.string().optional(),
  operationID: z.string().optional(),
  ReadyToUse: z.boolean().nullish(),
  volumeGroupSnapshotHandle: z.string().optional(),
});
const dataMovementSchema = z.looseObject({
  dataMover: z.string().optional(),
  uploaderType: z.string().optional(),
  retainedSnapshot: z.string().optional(),
  snapshotHandle: z.string().optional(),
  operationID: z.string().optional(),
  size: amount.optional(),
  incrementalSize: amount.optional(),
  Phase: z.string().optional(),
});
const nativeSnapshotSchema = z.looseObject({
  snapshotHandle: z.string().optional(),
  volumeType: z.string().optional(),
  volumeAZ: z.string().optional(),
  iops: z.string().optional(),
  Phase: z.string().optional(),
});
const podVolumeSchema = z.looseObject({
  snapshotHandle: z.string().optional(),
  size: amount.optional(),
  incrementalSize: amount.optional(),
  uploaderType: z.string().optional(),
  volumeName: z.string().optional(),
  podName: z.string().optional(),
  podNamespace: z.string().optional(),
  nodeName: z.string().optional(),
  Phase: z.string().optional(),
});
const volumeSchema = z.looseObject({
  pvcName: z.string().optional(),
  pvcNamespace: z.string().optional(),
  pvName: z.string().optional(),
  snapshotDataMoved: z.boolean().optional(),
  csiSnapshotInfo: csiSnapshotSchema.nullish(),
  snapshotDataMovementInfo: dataMovementSchema.nullish(),
  nativeSnapshotInfo: nativeSnapshotSchema.nullish(),
});
export const backupVolumeInfoSchema = volumeSchema.extend({
  /** `NativeSnapshot`, `PodVolumeBackup`, `CSISnapshot`; undefined for a skipped volume. */
  backupMethod: methods.optional(),
  preserveLocalSnapshot: z.boolean().optional(),
  skipped: z.boolean().optional(),
  skippedReason: z.string().optional(),
  /** Ours: the deciding rule, such as `rule 2 of ConfigMap velero/policies, line 7`. */
  decidedBy: z.string().optional(),
  note: z.string().optional(),
  /** RFC 3339. */
  startTimestamp: z.string().nullish(),
  completionTimestamp: z.string().nullish(),
  /** `succeeded`, `failed`. */
  result: z.string().optional(),
  pvbInfo: podVolumeSchema.nullish(),
  pvInfo: z
    .looseObject({
      reclaimPolicy: z.string().optional(),
      labels: z.record(z.string(), z.string()).nullish(),
    })
    .nullish(),
});
export const restoreVolumeInfoSchema = volumeSchema.extend({
  /** The methods of a backup, and `PodVolumeRestore`. */
  restoreMethod: methods.optional(),
  /** Ours: the claim existed, and its data was not changed. */
  skipped: z.boolean().optional(),
  skippedReason: z.string().optional(),
  pvrInfo: podVolumeSchema.nullish(),
});

export type BackupVolumeInfo = z.infer<typeof backupVolumeInfoSchema>;
export type RestoreVolumeInfo = z.infer<typeof restoreVolumeInfoSchema>;
