/** The data path: one volume into a repository, or back, as Velero records it. Knows nothing of Kubernetes. */
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
  type BackupVolumeOptions,
  type BackupVolumeResult,
  describeMove,
  REPOSITORY_CLIENT,
  REQUESTOR,
  restoreVolume,
  volumeSource,
} from './volume.ts';
