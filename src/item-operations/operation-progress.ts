import { MINUTE_NS, type Nanoseconds } from '../base/index.ts';
import type { OperationProgress } from '../plugin/index.ts';
import { isRunning, type Operation, type OperationStatus } from './operation.ts';

/** The progress that a plugin reported, or the error that prevented the question. */
export type Observation =
  | { readonly kind: 'progress'; readonly progress: OperationProgress }
  | { readonly kind: 'unasked'; readonly error: string; readonly isLasting: boolean };

/** Facts about an operation that only the running server knows. */
export interface Watch {
  /** Time since the first failed question; undefined after an answer. */
  readonly unaskedForNs: Nanoseconds | undefined;
  /** Failed questions since then. */
  readonly unaskedTimes: number;
  /** Whether the time-out has passed, by the monotonic clock. */
  readonly isOverdue: boolean;
}

export interface Observed {
  readonly operation: Operation;
  /** The plugin must cancel the operation: it has timed out. */
  readonly mustCancel: boolean;
}

/** Velero's text (pkg/controller/backup_operations_controller.go, v1.18.3). */
const TIMED_OUT = 'Asynchronous action timed out';
/**
 * An operation fails after its plugin was out of reach for this long. Velero fails it at once. Our
 * choice: an API server restarts in less time.
 */
const UNASKED_NS_MAX = 5n * MINUTE_NS;
/** Failures required beside the time, which may pass asleep. Our choice: at least half a minute. */
const UNASKED_TIMES_MIN = 4;

/**
 * Applies an observation to an operation. A final operation keeps its phase; later answers only
 * change its description. As in Velero, progress counts before the time-out.
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
    // Plugins may omit nCompleted; readers compare it with nTotal.
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

/** A known time is kept if the plugin omits it. */
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

/** Describes an answer that came after the time-out, for people. */
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

export const isAnyRunning = (operations: readonly Operation[]): boolean =>
  operations.some(isRunning);

/**
 * Failed operations that the status does not count yet. The caller adds this number to the errors
 * in the write that counts the operations. Both sides are stored values, so a restart counts each
 * failure exactly once.
 */
export const newlyFailed = (
  operations: readonly Operation[],
  { countedFailed = 0 }: { readonly countedFailed?: number | undefined },
): number => Math.max(0, countsOf(operations).failed - countedFailed);

/** Velero's sentence about a failed operation, for the backup log. */
export const failureLine = (operation: Operation, action: string): string => {
  const { error = '' } = operation.status;
  return error === '' ? `plugin: ${action}` : `${error}, plugin: ${action}`;
};
