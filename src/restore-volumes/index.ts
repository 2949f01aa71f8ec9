/**
 * What a restore does about volumes beside their objects: which PersistentVolumes are restored as
 * they were, from a snapshot of their provider, or provisioned anew; PodVolumeRestores as item
 * operations; what is noted of each; what dynamically provisioned volumes get of the old ones.
 * Moves no byte itself, and knows no journal: what must survive a restart are facts that it is
 * given back.
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
