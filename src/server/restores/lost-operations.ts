import { countsOf, type Operation } from '../../item-operations/index.ts';
import { partialPhase, type Restore } from '../../kube/index.ts';
import { type Change, changeOf } from '../operations/status-change.ts';
import type { LogLine } from '../operations/operation-results.ts';
import { RESTORE_RUNS, statusOf } from './restore-kind.ts';

/**
 * Number of operations that the status counts but the operations file lacks. They count as failed.
 */
export const lostOperations = (restore: Restore, operations: readonly Operation[]): number =>
  Math.max(0, (statusOf(restore).restoreItemOperationsAttempted ?? 0) - operations.length);

/** Lost operations, unless the status already counts them as failed. The file may still return. */
export function uncountedLost(restore: Restore, operations: readonly Operation[]): number {
  const lost = lostOperations(restore, operations);
  const counted = statusOf(restore).restoreItemOperationsFailed ?? 0;
  return countsOf(operations).failed + lost > counted ? lost : 0;
}

/** Like {@link changeOf}, but with lost operations, each counted once as failed. */
export function restoreChangeOf(
  restore: Restore,
  operations: readonly Operation[],
): Change | undefined {
  const lost = lostOperations(restore, operations);
  if (lost === 0) return changeOf(RESTORE_RUNS, restore, operations);
  const before = statusOf(restore);
  const { failed } = countsOf(operations);
  const newly = Math.max(0, failed + lost - (before.restoreItemOperationsFailed ?? 0));
  // Without the old count of failures, so that the phase includes them.
  const counted = { ...before, restoreItemOperationsFailed: undefined };
  const change = changeOf(RESTORE_RUNS, { ...restore, status: counted }, operations);
  const stage = change?.status.phase ?? before.phase ?? '';
  const phase = partialPhase(stage);
  const status = {
    ...change?.status,
    phase,
    errors: (before.errors ?? 0) + newly,
    restoreItemOperationsAttempted: operations.length + lost,
    restoreItemOperationsFailed: failed + lost,
  };
  const isSame =
    newly === 0 &&
    phase === before.phase &&
    (before.restoreItemOperationsCompleted ?? 0) === countsOf(operations).completed;
  return isSame ? undefined : { status, isStored: newly > 0 || phase !== before.phase };
}

/** Lines for log and results, the same each time. */
export const lostLines = (
  restore: Restore,
  operations: readonly Operation[],
): readonly LogLine[] => {
  const lost = lostOperations(restore, operations);
  if (lost === 0) return [];
  const all = operations.length + lost;
  const message = `${lost} of ${all} item operations are missing in the operations file of the restore, which is gone or damaged: what became of them is not known. Look at the DataDownloads and PodVolumeRestores of the restore, and at its volumes`;
  const time = restore.metadata.creationTimestamp ?? '';
  return [{ time, level: 'error', message }];
};
