/**
 * What a backup does about volumes beside their objects: which way each goes by the policies,
 * native snapshots, PodVolumeBackups as item operations, and what is noted of each. Moves no byte
 * itself, and knows no journal: what must survive a restart are facts that it is given back.
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
