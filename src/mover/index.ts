/** Stores or restores one volume in the way of Velero. Knows nothing of Kubernetes. */
export { isMarkName } from './restore-done-file.ts';
export type { Progress } from './progress.ts';
export {
  MOVER_SETTINGS,
  type MoverSetting,
  moverSettingProblem,
  type MoverSettings,
  moverSettingsOf,
  moverVariables,
} from './settings.ts';
export {
  backupVolume,
  type Parents,
  type PodOrigin,
  type PvcOrigin,
  type StoredVolume,
} from './backup-volume.ts';
export { excludeRulesIn, type ExcludeSources } from './excluded-paths.ts';
export type { WrittenVolume } from './written-volume.ts';
export { restoreVolume, type RestoreVolumeOptions } from './restore-volume.ts';
export { type InPlaceReport, restoreVolumeInPlace } from './restore-in-place.ts';
export type { LackingAttributes } from './restore-progress.ts';
export { NOT_MOUNTED_SUFFIX } from './same-volume.ts';
export { podVolumeSource, UPLOAD_TAG, volumeSource } from './snapshot-source.ts';
export { describeMove, type VolumeMoveOptions } from './volume.ts';
