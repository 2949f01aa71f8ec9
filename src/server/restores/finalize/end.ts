import { countsOf, type Operation } from '../../../item-operations/index.ts';
import type { Restore } from '../../../restore/index.ts';
import type { LogLine } from '../../operations/failures.ts';
import type { AfterRun } from '../contract.ts';
import { lostOperations } from '../lost-operations.ts';
import { restoreFailureLines } from '../operation-failures.ts';
import { type AfterRunStatus, statusOf } from '../restore-kind.ts';

/** All lines that are added to the log of a restore after its run; its errors and warnings are results as well. The same each time. */
export const endLines = (
  restore: Restore,
  operations: readonly Operation[],
  { hooks }: AfterRun,
  said: readonly LogLine[],
): readonly LogLine[] => [
  ...restoreFailureLines(restore, operations),
  ...hooks.failures.map(({ time, namespace, name, message }): LogLine => ({
    ...{ time, level: 'error', message: `pod ${name}: ${message}` },
    about: { resource: 'pods', namespace, name },
  })),
  ...said,
];

/** The status at the end, but for its time. Operations that the status does not count as failed yet, and lost ones, are counted now. */
export function endStatus(
  restore: Restore,
  operations: readonly Operation[],
  {
    said,
    left: { hooks },
    isPartial,
  }: {
    readonly said: { readonly errors: number; readonly warnings: number };
    readonly left: AfterRun;
    readonly isPartial: boolean;
  },
): AfterRunStatus {
  const before = statusOf(restore);
  const lost = lostOperations(restore, operations);
  const { attempted, completed, failed: failedNow } = countsOf(operations);
  const failed = failedNow + lost;
  const uncounted = Math.max(0, failed - (before.restoreItemOperationsFailed ?? 0));
  const more = uncounted + hooks.failures.length + said.errors;
  const isWell = !isPartial && more === 0;
  return {
    phase: isWell ? 'Completed' : 'PartiallyFailed',
    ...(more > 0 && { errors: (before.errors ?? 0) + more }),
    ...(said.warnings > 0 && { warnings: (before.warnings ?? 0) + said.warnings }),
    // As Go leaves out zeros.
    ...(attempted + lost > 0 && { restoreItemOperationsAttempted: attempted + lost }),
    ...(completed > 0 && { restoreItemOperationsCompleted: completed }),
    ...(failed > 0 && { restoreItemOperationsFailed: failed }),
    ...(hooks.attempted > 0 && {
      hookStatus: {
        hooksAttempted: hooks.attempted,
        ...(hooks.failed > 0 && { hooksFailed: hooks.failed }),
      },
    }),
  };
}
