import {
  countsOf,
  isAnyRunning,
  newlyFailed,
  type Operation,
} from '../../../item-operations/index.ts';
import type { Backup } from '../../../backup/index.ts';
import { type AfterRunStatus, isPartial, phaseOf, statusOf } from '../phases.ts';

/** What a Backup that waits becomes by its operations. */
export interface Change {
  readonly status: AfterRunStatus;
  /** The files in the bucket are to say it as well, before the Backup does. */
  readonly isStored: boolean;
}

/**
 * Undefined where the Backup says it already. Errors are counted by what both sides have stored: a failed operation is added in the write
 * that counts it. Velero: pkg/controller/backup_operations_controller.go, updateBackupAndOperationsJSON (v1.18.3).
 */
export function changeOf(backup: Backup, operations: readonly Operation[]): Change | undefined {
  const before = statusOf(backup);
  const { attempted, completed, failed } = countsOf(operations);
  const newly = newlyFailed(operations, { countedFailed: before.backupItemOperationsFailed });
  const stage = isAnyRunning(operations) ? 'WaitingForPluginOperations' : 'Finalizing';
  const phase = `${stage}${isPartial(phaseOf(backup)) || newly > 0 ? 'PartiallyFailed' : ''}`;
  const hasCounts =
    (before.backupItemOperationsAttempted ?? 0) === attempted &&
    (before.backupItemOperationsCompleted ?? 0) === completed &&
    (before.backupItemOperationsFailed ?? 0) === failed;
  if (hasCounts && phase === before.phase && newly === 0) return undefined;
  return {
    isStored: newly > 0 || phase !== before.phase,
    status: {
      phase,
      ...(newly > 0 && { errors: (before.errors ?? 0) + newly }),
      backupItemOperationsAttempted: attempted,
      backupItemOperationsCompleted: completed,
      backupItemOperationsFailed: failed,
    },
  };
}
