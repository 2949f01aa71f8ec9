import { type Clock, rfc3339Seconds } from '../../base/index.ts';
import type { KubeObject, Resource } from '../../kube/index.ts';
import type { Subject } from '../../item-operations/index.ts';
import { CANCEL_ANNOTATION } from '../../plugin/index.ts';
import { isJournalSealed } from './journal-tries.ts';

/** The meaning of each phase, by its name. Velero writes no such Events. */
export type PhaseMeanings = Readonly<Record<string, (name: string, errors: number) => string>>;

export const errorsText = (errors: number): string =>
  errors === 1 ? '1 error' : `${errors} errors`;

/** A Backup or a Restore with the fields that both have. */
export interface Run extends KubeObject {
  readonly spec: { readonly itemOperationTimeout?: string };
  readonly status?: object;
}

/** Fields that are read and written here, except the counts of operations. */
export interface RunStatus {
  readonly phase?: string;
  readonly errors?: number;
  readonly warnings?: number;
  readonly failureReason?: string;
  readonly completionTimestamp?: string | null;
}

/** The differences between Backups and Restores, for the code of both. */
export interface RunKind<T extends Run> {
  readonly kind: 'Backup' | 'Restore';
  /** Used in messages and as a field of the log. */
  readonly word: 'backup' | 'restore';
  readonly resource: Resource<T>;
  /** For Events and log lines. */
  readonly meanings: PhaseMeanings;
  /** Names of fields of the status. */
  readonly counts: {
    readonly attempted: keyof OperationFields;
    readonly completed: keyof OperationFields;
    readonly failed: keyof OperationFields;
  };
}

export interface OperationFields {
  readonly backupItemOperationsAttempted?: number;
  readonly backupItemOperationsCompleted?: number;
  readonly backupItemOperationsFailed?: number;
  readonly restoreItemOperationsAttempted?: number;
  readonly restoreItemOperationsCompleted?: number;
  readonly restoreItemOperationsFailed?: number;
}

export const statusIn = ({ status }: Run): RunStatus & OperationFields => status ?? {};
export const phaseIn = (object: Run): string => statusIn(object).phase ?? '';

/** The object as the operation map identifies it. */
export const subjectIn = <T extends Run>({ kind }: RunKind<T>, object: T): Subject => {
  const { name, uid } = object.metadata;
  return { kind, name, uid, isSealed: isJournalSealed(object) };
};

/** Whether a user ran `longshore backup cancel` or `longshore restore cancel`. */
export const isCanceled = ({ metadata }: Pick<KubeObject, 'metadata'>): boolean =>
  (metadata.annotations?.[CANCEL_ANNOTATION] ?? '') !== '';

/** The `failureReason` of a canceled Backup or Restore. */
export const CANCELED = 'canceled by user';

/** The status of a Backup or Restore that has failed. */
export const failedStatus = (failureReason: string, clock: Clock): object => ({
  phase: 'Failed',
  failureReason,
  completionTimestamp: rfc3339Seconds(clock.nowNs()),
});
