/** Upload and restore of file systems and devices. Knows nothing of Kubernetes. */
export { deviceBytes } from './upload/device-upload.ts';
export type { KeptExtras } from '../volume-files/index.ts';
export { newUploadCounters, type UploadCounters } from './progress.ts';
export { EstimateAhead } from './estimate/delayed-estimate.ts';
export { SourceEstimate } from './estimate/source-estimate.ts';
export { createSnapshot, type UploadOptions, type UploadResult } from './upload/upload.ts';
export {
  type AttributesNotSet,
  describeNotSet,
  incompleteSnapshot,
  newRestoreCounters,
  type Overwrite,
  type RestoreCounters,
  type RestoreOptions,
} from './restore/restore-report.ts';
export type { EntryFailure } from './upload/directory-summary.ts';
export type { StreamSource } from './upload/volume-upload.ts';
export { diskNameOf, diskPathOf } from './restore/restore-names.ts';
export { restoreTree } from './restore/restore.ts';
export { type PlannedEntry, planRestore } from './restore/restore-plan.ts';
export { Selection } from './restore/selection.ts';
export { restoreBlocks } from './restore/restore-volume.ts';
export {
  type Change,
  type InPlaceCounters,
  type InPlaceOptions,
  newInPlaceCounters,
} from './in-place/in-place-report.ts';
export type { RulesOfBackup } from './in-place/backup-rules.ts';
export { restoreTreeInPlace } from './in-place/tree-in-place.ts';
export { restoreBlocksInPlace } from './in-place/volume-in-place.ts';
export { expireSnapshots } from './expire.ts';
