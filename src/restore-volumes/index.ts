/**
 * What a restore does about volumes beside their objects: which PersistentVolumes are restored as they were, from a snapshot of their provider, or
 * provisioned anew; PodVolumeRestores as item operations; what is noted of each; what dynamically provisioned volumes get of the old ones. Moves no
 * byte itself, and knows no journal: what must survive a restart are facts that it is given back.
 */
export { planVolume, type VolumeFacts, type VolumePlan } from './decisions.ts';
export {
  type PreparedVolume,
  RestoredVolumes,
  type UsedSnapshot,
  type VolumeFact,
  type VolumesOptions,
} from './persistent-volumes.ts';
export { RehearsedVolumes, type RehearsedVolumesOptions } from './rehearsed-volumes.ts';
export { type FileBackup, fileBackupsOf } from './file-backups.ts';
export { FileBackups, type FileBackupsOptions, type FileRestoreFact } from './shared-claims.ts';
export { WAIT_ACTION, waitContainerAction, type WaitContainerOptions } from './wait-container.ts';
export {
  POD_VOLUME_RESTORE_ACTION,
  type PodVolumeOperation,
  PodVolumeRestores,
  type PodVolumeRestoresOptions,
} from './pod-volume-restores.ts';
export {
  type DynamicVolume,
  type DynamicVolumePlan,
  planDynamicVolume,
} from './dynamic-volumes.ts';
export {
  podVolumeInfoOf,
  type RestoredClaim,
  type RestoreInfoSources,
  restoreVolumeInfosOf,
  type SkippedClaim,
} from './volume-infos.ts';
