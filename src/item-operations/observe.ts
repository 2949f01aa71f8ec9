import { MINUTE_NS, type Nanoseconds } from '../base/index.ts';
import type { OperationProgress } from '../plugin/index.ts';
import { isRunning, type Operation, type OperationStatus } from './operation.ts';

/** What a plugin said about an operation, or that it could not be asked. */
export type Observation =
  | { readonly kind: 'progress'; readonly progress: OperationProgress }
  | { readonly kind: 'unasked'; readonly error: string; readonly isLasting: boolean };

/** What is known of an operation only while a server runs. */
export interface Watch {
  /** Since when its plugin could not be asked; undefined after an answer. */
  readonly unaskedForNs: Nanoseconds | undefined;
  /** How often it could not be asked since then. */
  readonly unaskedTimes: number;
  /** Whether its time-out is over, by clocks that nobody sets. */
  readonly isOverdue: boolean;
}

export interface Observed {
  readonly operation: Operation;
  /** It must be told to stop: nobody waits for it any more. */
  readonly mustCancel: boolean;
}

/** Velero's text (pkg/controller/backup_operations_controller.go, v1.18.3). */
const TIMED_OUT = 'Asynchronous action timed out';
/**
 * How long a plugin may not be asked before its operation has failed. Velero: not once. Our choice:
 * an API server restarts in less.
 */
const UNASKED_NS_MAX = 5n * MINUTE_NS;
/** The time alone may have been spent asleep. Our choice: after that, half a minute at least. */
const UNASKED_TIMES_MIN = 4;

/**
 * What becomes of an operation by an observation. One that is over stays as it is: what comes later
 * only changes its description. As Velero, progress is looked at before the time-out.
 */
export function observed(operation: Operation, observation: Observation, watch: Watch): Observed {
  if (!isRunning(operation))
    return { operation: described(operation, observation), mustCancel: false };
  const { status } = operation;
  if (observation.kind === 'unasked') {
    const { error, isLasting } = observation;
    const { unaskedForNs = 0n, unaskedTimes } = watch;
    const isLong = unaskedForNs >= UNASKED_NS_MAX && unaskedTimes >= UNASKED_TIMES_MIN;
    if (isLasting || isLong) {
      return { operation: failed(operation, status, error), mustCancel: false };
    }
    if (watch.isOverdue) return timedOut(operation, status);
    return { operation, mustCancel: false };
  }
  const { progress } = observation;
  const known = progressed(status, progress);
  if (progress.completed) {
    const { err } = progress;
    if (err !== '') return { operation: failed(operation, known, err), mustCancel: false };
    // Plugins need not say it; readers compare the two.
    const counts = { nCompleted: known.nTotal };
    const status = { ...known, ...counts, phase: 'Completed' };
    return { operation: withStatus(operation, status), mustCancel: false };
  }
  if (watch.isOverdue) return timedOut(operation, known);
  const hasStarted = typeof known.started === 'string' && known.started !== '';
  const phase = hasStarted ? 'InProgress' : (status.phase ?? 'New');
  return { operation: withStatus(operation, { ...known, phase }), mustCancel: false };
}

const timedOut = (operation: Operation, status: OperationStatus): Observed => ({
  operation: failed(operation, status, TIMED_OUT),
  mustCancel: true,
});

function failed(operation: Operation, status: OperationStatus, error: string): Operation {
  const text = error === '' ? 'its plugin did not say why' : error;
  return withStatus(operation, { ...status, phase: 'Failed', error: text });
}

/** A time that was known stays known. */
function progressed(status: OperationStatus, progress: OperationProgress): OperationStatus {
  const { nCompleted, nTotal, operationUnits, description, started, updated } = progress;
  return {
    ...status,
    nCompleted,
    nTotal,
    operationUnits,
    description,
    started: started ?? status.started,
    updated: updated ?? status.updated,
  };
}

/** What came too late, for people. */
function described(operation: Operation, observation: Observation): Operation {
  if (observation.kind === 'unasked' || operation.status.error !== TIMED_OUT) return operation;
  const { completed, err, description } = observation.progress;
  const end = err === '' ? 'completed' : `failed: ${err}`;
  const text = completed ? `after its time-out it ${end}` : description;
  return withStatus(operation, { ...operation.status, description: text });
}

const withStatus = (operation: Operation, status: OperationStatus): Operation => ({
  ...operation,
  status,
});

/** Numbers for the status of a Backup or Restore. */
export interface OperationCounts {
  readonly attempted: number;
  readonly completed: number;
  readonly failed: number;
}

export function countsOf(operations: readonly Operation[]): OperationCounts {
  const of = (phase: string): number =>
    operations.filter(({ status }) => status.phase === phase).length;
  return { attempted: operations.length, completed: of('Completed'), failed: of('Failed') };
}

/** Whether any operation is still running. */
export const isAnyRunning = (operations: readonly Operation[]): boolean =>
  operations.some(isRunning);

/**
 * Failed operations that the status does not count yet: so many are added to its errors, in the
 * write that counts them. Told from what is stored on both sides, so that a restart neither counts
 * one twice nor forgets one.
 */
export const newlyFailed = (
  operations: readonly Operation[],
  { countedFailed = 0 }: { readonly countedFailed?: number | undefined },
): number => Math.max(0, countsOf(operations).failed - countedFailed);

/** Velero's sentence of a failed operation for the log of a backup. */
export const failureLine = (operation: Operation, action: string): string => {
  const { error = '' } = operation.status;
  return error === '' ? `plugin: ${action}` : `${error}, plugin: ${action}`;
};
