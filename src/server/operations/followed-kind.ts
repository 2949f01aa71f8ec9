import type { KubeObject, Resource } from '../../kube/index.ts';
import type { Subject } from '../../item-operations/index.ts';
import { isJournalSealed } from '../runs/journal-tries.ts';

/** A Backup or a Restore with the fields that operations and finalizers need. */
export interface Followed extends KubeObject {
  readonly spec: { readonly itemOperationTimeout?: string };
  readonly status?: object;
}

/** Fields that are read and written here, except the counts of operations. */
export interface FollowedStatus {
  readonly phase?: string;
  readonly errors?: number;
  readonly warnings?: number;
  readonly failureReason?: string;
  readonly completionTimestamp?: string | null;
}

/** The differences between Backups and Restores. */
export interface FollowedKind<T extends Followed> {
  readonly kind: 'Backup' | 'Restore';
  /** Used in messages and as a field of the log. */
  readonly word: 'backup' | 'restore';
  readonly resource: Resource<T>;
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

export const statusIn = ({ status }: Followed): FollowedStatus & OperationFields => status ?? {};
export const phaseIn = (object: Followed): string => statusIn(object).phase ?? '';

/** The object as the operation map identifies it. */
export const subjectIn = <T extends Followed>({ kind }: FollowedKind<T>, object: T): Subject => {
  const { name, uid } = object.metadata;
  return { kind, name, uid, isSealed: isJournalSealed(object) };
};
