import {
  countsOf,
  isAnyRunning,
  newlyFailed,
  type Operation,
} from '../../item-operations/index.ts';
import { isPartial, phaseAfterRun } from '../../kube/index.ts';
import {
  type Followed,
  type FollowedKind,
  type FollowedStatus,
  type OperationFields,
  statusIn,
} from './followed-kind.ts';

/** What a Backup or a Restore that waits becomes by its operations. */
export interface Change {
  readonly status: FollowedStatus & OperationFields;
  /** The files in the bucket are to say it as well, before the object does. */
  readonly isStored: boolean;
}

/**
 * Undefined where the object says it already. Errors are counted by what both sides have stored: a
 * failed operation is added in the write that counts it. Velero:
 * pkg/controller/backup_operations_controller.go, updateBackupAndOperationsJSON, and
 * restore_operations_controller.go, updateRestoreAndOperationsJSON (v1.18.3).
 */
export function changeOf<T extends Followed>(
  { counts }: FollowedKind<T>,
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
