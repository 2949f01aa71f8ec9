import {
  countsOf,
  isAnyRunning,
  newlyFailed,
  type Operation,
} from '../../item-operations/index.ts';
import { isPartial, phaseAfterRun } from '../../kube/index.ts';
import {
  type Run,
  type RunKind,
  type RunStatus,
  type OperationFields,
  statusIn,
} from '../runs/run-kind.ts';

/** A status update of a Backup or Restore that waits for its operations. */
export interface Change {
  readonly status: RunStatus & OperationFields;
  /** True if the files in the bucket must change before the object does. */
  readonly isStored: boolean;
}

/**
 * Returns undefined if the status is up to date. A write that counts a failed operation also adds
 * its error. Velero: pkg/controller/backup_operations_controller.go, updateBackupAndOperationsJSON
 * (v1.18.3). Restores: restore_operations_controller.go, updateRestoreAndOperationsJSON.
 */
export function changeOf<T extends Run>(
  { counts }: RunKind<T>,
  object: T,
  operations: readonly Operation[],
): Change | undefined {
  const before = statusIn(object);
  const { attempted, completed, failed } = countsOf(operations);
  const newly = newlyFailed(operations, { countedFailed: before[counts.failed] });
  const phase = phaseAfterRun({
    waiting: isAnyRunning(operations),
    partial: isPartial(before.phase) || newly > 0,
  });
  const hasCounts =
    (before[counts.attempted] ?? 0) === attempted &&
    (before[counts.completed] ?? 0) === completed &&
    (before[counts.failed] ?? 0) === failed;
  if (hasCounts && phase === before.phase && newly === 0) return undefined;
  return {
    isStored: newly > 0 || phase !== before.phase,
    status: {
      phase,
      ...(newly > 0 && { errors: (before.errors ?? 0) + newly }),
      [counts.attempted]: attempted,
      [counts.completed]: completed,
      [counts.failed]: failed,
    },
  };
}
