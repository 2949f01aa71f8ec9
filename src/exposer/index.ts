/**
 * Exposes a snapshot, or a PVC that waits for its data, as a volume in a hosting pod, and cleans up
 * afterwards. Knows nothing of the phases of the CRs.
 */
export type {
  BackupPvcConfig,
  ExcludeConfig,
  ExposeConfig,
  ExposeContext,
  ExposerOptions,
} from './settings.ts';
export { CsiSnapshotExposer } from './csi-snapshot.ts';
export { GenericRestoreExposer } from './generic-restore.ts';
export { InPlaceExposer } from './in-place.ts';
export { inPlaceHindrance } from './in-place-hindrance.ts';
export { inUseMeanwhile, targetProblem } from './in-place-target.ts';
export { type ClaimRef, describeUsers, followUsers, usersOfClaim } from './claim-users.ts';
export {
  deathOf,
  hasEnded,
  isOutOfService,
  refusalOf,
  terminationOf,
  unrecoverable,
} from './pod-health.ts';
export { BACKUP_KIND, PodVolumeExposer, RESTORE_KIND, restoreTargetOf } from './pod-volume.ts';
export { isWaitOver, WAIT_CONTAINER } from './wait-container.ts';
export { hostedName, volumeBytesOf } from './hosting-pod.ts';
export { VOLUMES } from './volumes.ts';
