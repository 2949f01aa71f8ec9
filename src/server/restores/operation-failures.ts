import { actionOf, failureLine, type Operation } from '../../item-operations/index.ts';
import type { Restore } from '../../kube/index.ts';
import { failureLines, type LogLine } from '../operations/operation-results.ts';
import { lostLines } from './lost-operations.ts';

/**
 * Lines that operations add to log and results. Results of restores are plain sentences, so each
 * line names its item. Velero: pkg/controller/restore_controller.go, runValidatedRestore.
 */
export const restoreFailureLines = (
  restore: Restore,
  operations: readonly Operation[],
): readonly LogLine[] => [
  ...lostLines(restore, operations),
  ...failureLines(operations, (operation) => {
    const { Resource, Name } = operation.spec.resourceIdentifier;
    const failure = failureLine(operation, actionOf(operation));
    return `error from restore item operation: ${Resource} ${Name}: ${failure}`;
  }),
];
