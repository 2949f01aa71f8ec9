/**
 * Volume steps of a backup beside the objects: policy decisions, native snapshots, and
 * PodVolumeBackups as item operations. Moves no bytes and knows no journal: facts that must survive
 * a restart are handed back to it.
 */
export type {
  AskedSnapshot,
  BackupVolumes,
  Snapshotters,
  UploadOperation,
  VolumeFact,
  VolumeOutcome,
} from './contract.ts';
export { ClusterVolumes, nativeSnapshotsIn } from './cluster-volumes.ts';
export { podVolumeName } from './pod-volume-name.ts';
export { POD_VOLUME_ACTION } from './pod-volume-backups.ts';
export { loadSnapshotLocations, type SnapshotLocation } from './snapshot-locations.ts';
export { operationTimeoutNs } from './timeouts.ts';
