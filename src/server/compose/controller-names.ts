/**
 * Our controllers, with the names of Velero's. As in Velero, all run by default. The help of the
 * command line lists them, so this file imports nothing.
 */
export const CONTROLLERS = [
  'backup',
  'backup-operations',
  'backup-finalizer',
  'backup-deletion',
  'gc',
  'backup-repo',
  'backup-storage-location',
  'backup-sync',
  'download-request',
  'schedule',
  'server-status-request',
  'restore',
  'restore-operations',
  'restore-finalizer',
] as const;
export type ControllerName = (typeof CONTROLLERS)[number];
/** Restores need all of these together. */
export const RESTORE_CONTROLLERS = ['restore', 'restore-operations', 'restore-finalizer'] as const;
export type RestoreControllerName = (typeof RESTORE_CONTROLLERS)[number];
/** These share one map of operations. */
export const OPERATION_CONTROLLERS = ['backup', 'backup-operations', 'backup-finalizer'] as const;
export type BackupControllerName = (typeof OPERATION_CONTROLLERS)[number] | 'backup-deletion';
