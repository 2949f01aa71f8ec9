/**
 * The volumes of a restore. Decides which PersistentVolumes are restored unchanged, from a native
 * snapshot, or provisioned again. Makes PodVolumeRestores as item operations, records volume infos,
 * and updates dynamically provisioned volumes. Moves no data and knows no journal: the caller
 * stores facts, and passes them back after a restart.
 */
export { type VolumeFacts } from './decisions.ts';
export { RestoredVolumes, type VolumeFact } from './persistent-volumes.ts';
export { RehearsedVolumes } from './rehearsed-volumes.ts';
export { fileBackupsOf } from './file-backups.ts';
export { FileBackups, type FileRestoreFact } from './shared-claims.ts';
export { waitContainerAction, type WaitContainerOptions } from './wait-container.ts';
export { POD_VOLUME_RESTORE_ACTION, PodVolumeRestores } from './pod-volume-restores.ts';
export { type DynamicVolume, planDynamicVolume } from './dynamic-volumes.ts';
export {
  podVolumeInfoOf,
  type RestoredClaim,
  type RestoreInfoSources,
  restoreVolumeInfosOf,
  type SkippedClaim,
} from './volume-infos.ts';
