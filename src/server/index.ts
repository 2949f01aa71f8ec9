/**
 * Runs in the Deployment: controllers of Velero's objects. A single process leads. Each folder
 * handles a kind of object: `expiry/` and `deletion/` end backups, and `sync/` creates Backups for
 * stored backups. `locations/` also opens buckets for other folders. Moves no volumes; it creates
 * and maintains repositories, without their contents.
 */
export { Server, type ServerController, type ServerOptions } from './server.ts';
export { describeServer } from './server-status.ts';
export {
  RepositoryController,
  type RepositoryControllerOptions,
} from './repositories/repository-controller.ts';
export {
  LocationController,
  type LocationControllerOptions,
} from './locations/location-controller.ts';
export type { LocationStoreOptions } from './locations/location-stores.ts';
export { ReadOnlyLocations } from './locations/read-only-locations.ts';
export {
  DownloadController,
  type DownloadControllerOptions,
  type UnsavedOperations,
} from './downloads/download-controller.ts';
export {
  type PluginInfo,
  StatusRequestController,
  type StatusRequestControllerOptions,
} from './status-requests/status-request-controller.ts';
export {
  ScheduleController,
  type ScheduleControllerOptions,
} from './schedules/schedule-controller.ts';
export { SyncController, type SyncControllerOptions } from './sync/sync-controller.ts';
export {
  ensurePasswordSecret,
  isPasswordWellKnown,
  type PasswordSecretOutcome,
  WELL_KNOWN_REMEDY,
} from './repositories/password-secret.ts';
export {
  type ChangeAllOptions,
  type ChangeAllReport,
  changeAllPasswords,
  type ChangedRepository,
  isPasswordChangeBegun,
} from './repositories/password-change/change-all.ts';
export { prepareRepository, type PrepareOptions } from './repositories/prepare.ts';
export {
  JOB_NAME_VARIABLE,
  JOB_UID_VARIABLE,
  MAINTENANCE_ERROR,
} from './repositories/maintenance/job.ts';
export {
  type MaintenanceRunOptions,
  runMaintenanceJob,
} from './repositories/maintenance/maintenance-run.ts';
export { BackupController, type BackupControllerOptions } from './backups/backup-controller.ts';
export { CANCEL_ANNOTATION } from '../plugin/index.ts';
export { BackupMetrics } from './backups/backup-metrics.ts';
export { RestoreBucket } from './restores/files/restore-bucket.ts';
export { RESTORE_FILES_LABEL } from './restores/files/cluster-files.ts';
export { LocationBuckets, type LocationBucketsOptions } from './backups/buckets.ts';
export { ClusterRunner, type ClusterRunnerOptions } from './backups/run/cluster-runner.ts';
export { HostSessions } from './backups/run/host-sessions.ts';
export { backupOperationStore, restoreOperationStore } from './operations/operation-stores.ts';
export { SharedBackups } from './backups/shared-backups.ts';
export { unsavedOperationsOf } from './backups/unsaved-operations.ts';
export {
  OperationsController,
  type OperationsControllerOptions,
} from './backups/operations/operations-controller.ts';
export { OperationMetrics } from './operations/operation-metrics.ts';
export { cancelOperations } from './operations/cancel-operations.ts';
export type { TimeoutOf } from './operations/followed-operations.ts';
export {
  FinalizerController,
  type FinalizerControllerOptions,
} from './backups/finalize/finalizer-controller.ts';
export {
  RestoreOperationsController,
  type RestoreOperationsControllerOptions,
} from './restores/operations/operations-controller.ts';
export {
  RestoreFinalizerController,
  type RestoreFinalizerControllerOptions,
} from './restores/finalize/finalizer-controller.ts';
export { RestoreController, type RestoreControllerOptions } from './restores/restore-controller.ts';
export { RestoreMetrics } from './restores/restore-metrics.ts';
export {
  ClusterRestoreRunner,
  type ClusterRestoreRunnerOptions,
} from './restores/run/restore-runner.ts';
export { HostRestoreSessions } from './restores/run/host-sessions.ts';
export { FileWriters } from './runs/file-writers.ts';
export { RestoreLocations } from './restores/locations.ts';
export { SharedRestores } from './restores/shared-restores.ts';
export {
  DeletionController,
  type DeletionControllerOptions,
} from './deletion/deletion-controller.ts';
export { DeletionMetrics } from './deletion/deletion-metrics.ts';
export type { ForgetSnapshots } from './deletion/contract.ts';
export { ExpiryController, type ExpiryControllerOptions } from './expiry/expiry-controller.ts';
// Not a controller: the status page, which every process serves.
export { Access, browseReviews, clusterReviews, STATUS_PAGE_AUDIENCE } from './page/access.ts';
export type {
  BackupFiles,
  BrowsedBackup,
  BrowsedVolume,
  FileEntry,
  FilePlace,
  OpenEntry,
} from './page/files/contract.ts';
export { PageHandler, type PageHandlerOptions } from './page/handler.ts';
export type { RunRow } from './page/rows.ts';
export { MESSAGES_MAX, type MessageSource, type RunMessages } from './page/run-parts.ts';
export type { LocationTrust, TrustSource } from './page/signatures.ts';
export { PageView } from './page/view.ts';
export {
  type MovedBytes,
  type PageVolume,
  repositoryKey,
  type VolumeOwner,
  type VolumesNow,
  type VolumeSource,
} from './page/volumes.ts';
export { RehearsedRun, type RehearsedRunOptions } from './restores/run/rehearsed-run.ts';
export { serverEvents } from './server-events.ts';
