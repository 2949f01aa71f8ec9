import { z } from 'zod';
import type { CrdDefinition } from './crd.ts';
import { MOVEMENT_PHASES } from './phases.ts';

/**
 * The custom resources with the fields of Velero 1.18 (config/crd/v1, config/crd/v2alpha1) and
 * those of 1.19 for restores in place. The types below and crds/*.yaml come from here. Unknown
 * fields of a later Velero are kept.
 */

/** A JSON number; `int64` in the CRD. */
const int64 = z.number().meta({ type: 'integer', format: 'int64' });
const time = z.string().meta({ format: 'date-time' });
const strings = z.record(z.string(), z.string());
const phase = z.enum(MOVEMENT_PHASES);
const nodeOs = z.enum(['auto', 'linux', 'windows']);

const progress = z
  .looseObject({
    bytesDone: int64.optional(),
    totalBytes: int64.optional(),
  })
  .describe('How many bytes were moved, and how many there are in total.');

const cancel = z.boolean().describe('Set to ask for the operation to be canceled.');
const datamover = z
  .string()
  .describe('Who moves the data; empty or "velero" is the built-in data mover.');
const operationTimeout = z
  .string()
  .describe('How long single internal waits may take, not the whole operation; for example 10m0s.');
const storageLocation = z.string().describe('Name of the BackupStorageLocation.');
const moverConfig = strings.describe('Settings for the data mover.');

const movementStatus = {
  acceptedByNode: z.string().optional().describe('The node whose agent exposes the volume.'),
  acceptedTimestamp: time.nullable().optional(),
  completionTimestamp: time.nullable().optional(),
  message: z.string().optional().describe('Why the operation is in its phase, in words.'),
  node: z.string().optional().describe('The node whose agent runs the data path.'),
  phase: phase.optional(),
  progress: progress.optional(),
  startTimestamp: time.nullable().optional(),
};

/** Required in Velero 1.19, unknown to servers of 1.18. */
const restoreType = z
  .string()
  .describe('"full" or "incremental" for a volume that exists already; empty for a new one.');

/** Velero 1.19. */
const parentSnapshot = z
  .string()
  .describe('"none" for a full backup, the ID of an earlier snapshot, or empty to find one.');

const dataUploadSpec = z.looseObject({
  backupStorageLocation: storageLocation,
  cancel: cancel.optional(),
  csiSnapshot: z
    .looseObject({
      driver: z.string().optional().describe('The CSI driver of the snapshot.'),
      snapshotClass: z.string().optional(),
      storageClass: z.string().describe('Storage class of the source PVC.'),
      volumeSnapshot: z.string().describe('Name of the VolumeSnapshot in the source namespace.'),
    })
    .nullable()
    .optional(),
  dataMoverConfig: moverConfig.nullable().optional(),
  datamover: datamover.optional(),
  operationTimeout,
  parentSnapshot: parentSnapshot.optional(),
  snapshotType: z.string().describe('The kind of the snapshot; CSI.'),
  sourceFSType: z.string().optional().describe('File system of the source volume.'),
  sourceNamespace: z.string().describe('Namespace of the PVC and of its repository.'),
  sourcePVC: z.string().describe('Name of the PVC that the snapshot was taken of.'),
});

const dataUploadStatus = z.looseObject({
  ...movementStatus,
  dataMoverResult: strings.nullable().optional(),
  incrementalBytes: int64
    .optional()
    .describe('Bytes of files that were not taken over from an earlier backup.'),
  nodeOS: nodeOs.optional(),
  path: z.string().optional().describe('The path in the data mover that was backed up.'),
  snapshotID: z.string().optional().describe('ID of the snapshot manifest in the repository.'),
});

const dataDownloadSpec = z.looseObject({
  backupStorageLocation: storageLocation,
  cancel: cancel.optional(),
  csiSnapshot: z
    .looseObject({})
    // Velero has not settled these fields yet, and nothing here reads them.
    .meta({ 'x-kubernetes-preserve-unknown-fields': true })
    .nullable()
    .optional()
    .describe('A snapshot of the volume as it is now, for its changed blocks (Velero 1.19).'),
  dataMoverConfig: moverConfig.optional(),
  datamover: datamover.optional(),
  nodeOS: nodeOs.optional(),
  operationTimeout,
  restoreType: restoreType.optional(),
  snapshotID: z.string().describe('ID of the snapshot manifest in the repository.'),
  snapshotSize: int64.optional().describe('Logical size of the snapshot in bytes.'),
  sourceNamespace: z.string().describe('Namespace at backup time: it selects the repository.'),
  targetVolume: z.looseObject({
    fsType: z.string().optional().describe('File system of the volume.'),
    namespace: z.string(),
    pv: z.string(),
    pvc: z.string(),
  }),
});

const dataDownloadStatus = z.looseObject(movementStatus);

const backupRepositorySpec = z.looseObject({
  backupStorageLocation: storageLocation,
  maintenanceFrequency: z.string().describe('How often maintenance runs; for example 1h0m0s.'),
  repositoryConfig: strings.nullable().optional(),
  repositoryType: z.enum(['kopia', 'restic', '']).optional(),
  resticIdentifier: z.string().optional().describe('Deprecated.'),
  volumeNamespace: z.string().describe('Namespace whose volumes the repository holds.'),
});

const backupRepositoryStatus = z.looseObject({
  lastMaintenanceTime: time.nullable().optional(),
  message: z.string().optional(),
  phase: z.enum(['New', 'Ready', 'NotReady']).optional(),
  recentMaintenance: z
    .array(
      z.looseObject({
        completeTimestamp: time.nullable().optional(),
        message: z.string().optional(),
        result: z.enum(['Succeeded', 'Failed']).optional(),
        startTimestamp: time.nullable().optional(),
      }),
    )
    .optional(),
});

const podReference = z
  .looseObject({
    apiVersion: z.string().optional(),
    fieldPath: z.string().optional(),
    kind: z.string().optional(),
    name: z.string().optional(),
    namespace: z.string().optional(),
    resourceVersion: z.string().optional(),
    uid: z.string().optional(),
  })
  .meta({ 'x-kubernetes-map-type': 'atomic' });
const uploaderType = z.enum(['kopia', 'restic', '']);

const podVolumeBackupSpec = z.looseObject({
  backupStorageLocation: storageLocation,
  cancel: cancel.optional(),
  node: z.string().describe('The node that the pod runs on.'),
  parentSnapshot: parentSnapshot.optional(),
  pod: podReference,
  repoIdentifier: z.string(),
  tags: strings.optional(),
  uploaderSettings: strings.nullable().optional(),
  uploaderType: uploaderType.optional(),
  volume: z.string().describe('Name of the volume in the pod.'),
});

const podVolumeBackupStatus = z.looseObject({
  acceptedTimestamp: time.nullable().optional(),
  completionTimestamp: time.nullable().optional(),
  incrementalBytes: int64.optional(),
  message: z.string().optional(),
  path: z.string().optional(),
  phase: phase.optional(),
  progress: progress.optional(),
  snapshotID: z.string().optional(),
  startTimestamp: time.nullable().optional(),
});

const podVolumeRestoreSpec = z.looseObject({
  backupStorageLocation: storageLocation,
  cancel: cancel.optional(),
  pod: podReference,
  repoIdentifier: z.string(),
  restoreType: restoreType.optional(),
  snapshotID: z.string(),
  snapshotSize: int64.optional(),
  sourceNamespace: z.string(),
  uploaderSettings: strings.nullable().optional(),
  uploaderType: uploaderType.optional(),
  volume: z.string(),
});

const podVolumeRestoreStatus = z.looseObject({
  acceptedTimestamp: time.nullable().optional(),
  completionTimestamp: time.nullable().optional(),
  message: z.string().optional(),
  node: z.string().optional(),
  phase: phase.optional(),
  progress: progress.optional(),
  startTimestamp: time.nullable().optional(),
});

export type DataUploadSpec = z.infer<typeof dataUploadSpec>;
export type DataUploadStatus = z.infer<typeof dataUploadStatus>;
export type DataDownloadSpec = z.infer<typeof dataDownloadSpec>;
export type DataDownloadStatus = z.infer<typeof dataDownloadStatus>;
export type PodVolumeBackupSpec = z.infer<typeof podVolumeBackupSpec>;
export type PodVolumeBackupStatus = z.infer<typeof podVolumeBackupStatus>;
export type PodVolumeRestoreSpec = z.infer<typeof podVolumeRestoreSpec>;
export type PodVolumeRestoreStatus = z.infer<typeof podVolumeRestoreStatus>;
export type BackupRepositorySpec = z.infer<typeof backupRepositorySpec>;
export type BackupRepositoryStatus = z.infer<typeof backupRepositoryStatus>;

const column = (
  name: string,
  jsonPath: string,
  type: string,
  more: { format?: string; priority?: number; description?: string } = {},
) => ({ name, jsonPath, type, ...more });

const STATUS = column('Status', '.status.phase', 'string', { description: 'Phase' });
const STARTED = column('Started', '.status.startTimestamp', 'date', {
  description: 'Time since it was started',
});
const BYTES_DONE = column('Bytes Done', '.status.progress.bytesDone', 'integer', {
  description: 'Bytes moved',
  format: 'int64',
});
const TOTAL_BYTES = column('Total Bytes', '.status.progress.totalBytes', 'integer', {
  description: 'Bytes in all',
  format: 'int64',
});
const INCREMENTAL_BYTES = column('Incremental Bytes', '.status.incrementalBytes', 'integer', {
  description: 'Bytes that no earlier backup had',
  format: 'int64',
  priority: 10,
});
const STORAGE_LOCATION = column('Storage Location', '.spec.backupStorageLocation', 'string', {
  description: 'Name of the BackupStorageLocation',
});
const AGE = column('Age', '.metadata.creationTimestamp', 'date', {
  description: 'Time since it was created',
});
const NODE = column('Node', '.status.node', 'string', {
  description: 'The node that moves the data',
});

export const CRDS: readonly CrdDefinition[] = [
  {
    kind: 'DataUpload',
    plural: 'datauploads',
    version: 'v2alpha1',
    description: 'DataUpload asks for a volume snapshot to be moved into a backup repository.',
    spec: dataUploadSpec,
    status: dataUploadStatus,
    columns: [
      STATUS,
      STARTED,
      BYTES_DONE,
      TOTAL_BYTES,
      INCREMENTAL_BYTES,
      STORAGE_LOCATION,
      AGE,
      NODE,
    ],
  },
  {
    kind: 'DataDownload',
    plural: 'datadownloads',
    version: 'v2alpha1',
    description:
      'DataDownload asks for a snapshot in a backup repository to be restored into a volume.',
    spec: dataDownloadSpec,
    status: dataDownloadStatus,
    columns: [STATUS, STARTED, BYTES_DONE, TOTAL_BYTES, STORAGE_LOCATION, AGE, NODE],
  },
  {
    kind: 'BackupRepository',
    plural: 'backuprepositories',
    version: 'v1',
    description: 'BackupRepository is the repository of the volumes of one namespace.',
    spec: backupRepositorySpec,
    status: backupRepositoryStatus,
    columns: [AGE, column('Repository Type', '.spec.repositoryType', 'string')],
  },
  {
    kind: 'PodVolumeBackup',
    plural: 'podvolumebackups',
    version: 'v1',
    description: 'PodVolumeBackup asks for a volume of a running pod to be backed up.',
    spec: podVolumeBackupSpec,
    status: podVolumeBackupStatus,
    columns: [
      STATUS,
      STARTED,
      BYTES_DONE,
      TOTAL_BYTES,
      INCREMENTAL_BYTES,
      STORAGE_LOCATION,
      AGE,
      NODE,
      column('Uploader', '.spec.uploaderType', 'string', { description: 'Type of the uploader' }),
    ],
  },
  {
    kind: 'PodVolumeRestore',
    plural: 'podvolumerestores',
    version: 'v1',
    description: 'PodVolumeRestore asks for a snapshot to be restored into a volume of a pod.',
    spec: podVolumeRestoreSpec,
    status: podVolumeRestoreStatus,
    columns: [
      STATUS,
      STARTED,
      BYTES_DONE,
      TOTAL_BYTES,
      STORAGE_LOCATION,
      AGE,
      NODE,
      column('Uploader Type', '.spec.uploaderType', 'string', {
        description: 'Type of the uploader',
      }),
    ],
  },
];
