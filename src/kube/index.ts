/**
 * Kubernetes as this project sees it: objects, caches, queues and controllers. The client keeps
 * unknown fields. Knows nothing of volumes or repositories.
 */
export type {
  ConfigMap,
  ClusterRoleBinding,
  Container,
  ContainerStatus,
  DaemonSet,
  Deployment,
  EnvVar,
  Event,
  Job,
  KubeObject,
  Lease,
  Metadata,
  NewObject,
  Node,
  NodeSelectorTerm,
  ObjectReference,
  OwnerReference,
  PersistentVolume,
  PersistentVolumeClaim,
  Pod,
  PodSpec,
  PolicyBinding,
  Secret,
  StorageClass,
  Toleration,
  Volume,
  VolumeMount,
  VolumeSnapshot,
  VolumeGroupSnapshot,
  VolumeGroupSnapshotClass,
  VolumeGroupSnapshotContent,
  VolumeSnapshotClass,
  VolumeSnapshotContent,
} from './api/core.ts';
export type {
  Backup,
  BackupSpec,
  BackupStatus,
  ExecHook,
  OldLists,
  ResourceHook,
  ScopedLists,
} from './api/backup.ts';
export {
  type LocalReference,
  type Restore,
  type RestoreHook,
  type RestoreHookSpec,
  type RestoreSpec,
  targetNamespace,
} from './api/restore.ts';
export {
  NO_PARENT,
  apiVersionOf,
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DELETE_BACKUP_REQUESTS,
  type BackupRepository,
  type BackupStorageLocation,
  BLOCK_MOVER,
  BUILT_IN_MOVERS,
  CLUSTER_ROLE_BINDINGS,
  CONFIG_MAPS,
  CUSTOM_RESOURCE_DEFINITIONS,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  DEPLOYMENTS,
  DOWNLOAD_REQUESTS,
  type DownloadRequest,
  EVENTS,
  isBuiltInMover,
  JOBS,
  KNOWN_MOVERS,
  LEASES,
  NAMESPACES,
  NODES,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolumeBackup,
  type PodVolumeRestore,
  PODS,
  POLICY_BINDINGS,
  PRIORITY_CLASSES,
  PVCS,
  PVS,
  type Resource,
  RESTORES,
  ROLE_BINDINGS,
  SCHEDULES,
  SECRETS,
  SERVED_MOVERS,
  SERVER_STATUS_REQUESTS,
  SERVICE_ACCOUNTS,
  type ServerStatusRequest,
  STORAGE_CLASSES,
  SUBJECT_ACCESS_REVIEWS,
  TOKEN_REVIEWS,
  type UserInfo,
  VOLUME_ATTACHMENTS,
  VOLUME_GROUP_SNAPSHOT_CLASSES,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOT_LOCATIONS,
  VOLUME_SNAPSHOTS,
} from './api/resources.ts';
export {
  IN_PLACE_MOVER,
  inPlaceConfig,
  type InPlaceOrder,
  inPlaceOrderOf,
  isInPlace,
} from './api/in-place.ts';
export {
  annotatedExcludes,
  excludedPathsOf,
  excludesOfPodVolume,
  excludesVariable,
  parseExcludesVariable,
} from './api/excluded-paths.ts';
export {
  ARCHIVE_KEYS_SECRET,
  BACKUP_NAME,
  BACKUP_UID,
  type BackupIdentity,
  EXPIRY_NOTE,
  isLeftOutOfBackups,
  isOfBackup,
  isOwnObject,
  isSnapshotOfBackup,
  isSynced,
  isTransientType,
  isUploadOfBackup,
  NOT_IN_BACKUPS,
  PASSWORD_CHANGE_LEASE,
  PASSWORD_SECRET,
  RESTORE_NAME,
  SCHEDULE_UID,
  SECOND_VOLUME_PREFIX,
  SERVER_LEASE,
  SIGNATURE,
  SIGNED,
  SYNCED_SCHEDULE_UID,
  SYNCED_UID,
  TLS_VOLUME,
  UNDER_WAY_PREFIX,
  UPLOADS_TYPE,
  validLabel,
} from './api/own-objects.ts';
export {
  FINAL_MOVEMENT_PHASES,
  type FinalMovementPhase,
  hasEnded,
  hasNoFiles,
  hasHadRun,
  hasMovementFailed,
  hasPlace,
  hasVolumes,
  isAnswered,
  isFailed,
  isFinalizing,
  isGathering,
  isInLine,
  isMovementOver,
  isMovementRunning,
  isMovementWaiting,
  isNew,
  isOver,
  isPartial,
  isPodOver,
  isQueued,
  isUnderWay,
  isUnstored,
  isUsable,
  isWaiting,
  type MovementPhase,
  MOVING_FIRST,
  partialPhase,
  phaseAfterRun,
  type Tone,
  toneOf,
} from './api/phases.ts';
export { containerStatusesOf, lastingContainers } from './api/containers.ts';
export { Cache, type CacheOptions, keyOf, type Listener, refOf } from './cache/cache.ts';
export { withOwnSignal } from './cache/own-signal.ts';
export { waitFor, waitGone, type WaitOptions } from './cache/wait.ts';
export {
  BEING_CREATED,
  BEING_DELETED,
  CONTENT_FINALIZER,
  untilHandleTold,
} from './snapshot-contents.ts';
export { KubeClient, type ObjectRef, type WatchEvent, type WriteOptions } from './client/client.ts';
export { ReadsAhead } from './client/reads-ahead.ts';
export { type ConnectOptions, connectToCluster } from './client/connect.ts';
export { Controller, type ControllerOptions, type Result } from './controller/controller.ts';
export { LeaderElection, type ElectionOptions } from './election/leader-election.ts';
export { WorkQueue } from './queue/work-queue.ts';
export { assertLasting, isPassing, isPassingAnswer } from './client/errors.ts';
export {
  isExtensionAway,
  isOfGateway,
  isStoreAway,
  isUnauthorized,
  meaningOf,
  ofExtension,
} from './client/error-meaning.ts';
export {
  askedFor,
  isRefusedForNow,
  judged,
  LastingRefusals,
  Patience,
  patiently,
  REFUSED_MS,
  whileUnauthorized,
} from './client/patience.ts';
export { EventRecorder, type EventRecorderOptions } from './controller/event-recorder.ts';
export { CRDS } from './api/schema.ts';
export { customResourceDefinition, VELERO_GROUP } from './api/crd.ts';
export { shortNamesOf } from './api/short-names.ts';
export { Discovery, type ServerVersion } from './discovery/discovery.ts';
export type { DiscoveryFailure, ServedResource, ServedVersion } from './discovery/served.ts';
export type { ExecOutput } from './client/exec.ts';
export {
  applyJsonPatch,
  PATCH_FAILED,
  PATCH_PLACE_MISSING,
  PATCH_TEST_FAILED,
  type PatchOperation,
} from './patches/json-patch.ts';
export { applyMergePatch, createMergePatch } from './patches/merge-patch.ts';
export { applyStrategicMergePatch } from './patches/strategic-merge-patch.ts';
export { isSame as isSameJson } from './patches/json-values.ts';
