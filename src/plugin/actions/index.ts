import { CONTENT_BACKUP, CLASS_BACKUP, SnapshotBackup } from './snapshots/snapshot-backup.ts';
import { CLASS_RESTORE, ContentRestore, SnapshotRestore } from './snapshots/snapshot-restore.ts';
import { GroupDelete } from './groups/group-handles.ts';
import { PodVolumeOperation } from './movements/pod-volume-operation.ts';
import { PodVolumeRestoreOperation } from './movements/pod-volume-restore-operation.ts';
import { PvcBackup } from './pvc-backup.ts';
import { PvcBlock } from './pvc-block.ts';
import { PvcRestore } from './pvc-restore.ts';
import { RecentAnswers } from './recent-answers.ts';
import type { Setting } from './settings.ts';
import { UploadDelete } from './movements/upload-delete.ts';
import { UploadResults } from './movements/upload-result.ts';

export const openActions = (given: Setting) => actionsOf({ recent: new RecentAnswers(), ...given });

const actionsOf = (setting: Setting) => ({
  pvcBackup: () => new PvcBackup(setting),
  snapshotBackup: () => new SnapshotBackup(setting),
  contentBackup: () => CONTENT_BACKUP,
  classBackup: () => CLASS_BACKUP,
  pvcRestore: () => new PvcRestore(setting),
  snapshotRestore: () => new SnapshotRestore(setting),
  contentRestore: () => new ContentRestore(setting),
  classRestore: () => CLASS_RESTORE,
  uploadResults: () => new UploadResults(setting),
  groupDelete: () => new GroupDelete(setting),
  uploadDelete: () => new UploadDelete(setting),
  pvcBlock: () => new PvcBlock(setting),
  podVolumeOperation: () => new PodVolumeOperation(setting),
  podVolumeRestoreOperation: () => new PodVolumeRestoreOperation(setting),
});
export type OpenActions = ReturnType<typeof openActions>;
