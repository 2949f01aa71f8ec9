import type { KubeObject, Resource } from '../../kube/index.ts';
import type { Subject } from '../../item-operations/index.ts';
import { isJournalSealed } from '../runs/stored-tries.ts';

/** A Backup or a Restore, as far as what follows its run is concerned. */
export interface Followed extends KubeObject {
  readonly spec: { readonly itemOperationTimeout?: string };
  readonly status?: object;
}

/**
 * The part of the status that is read and written here; the fields that count operations have their
 * names in {@link FollowedKind}.
 */
export interface FollowedStatus {
  readonly phase?: string;
  readonly errors?: number;
  readonly warnings?: number;
  readonly failureReason?: string;
  readonly completionTimestamp?: string | null;
}

/** What is told from each other of Backups and Restores. */
export interface FollowedKind<T extends Followed> {
  readonly kind: 'Backup' | 'Restore';
  /** In messages, and as the field of a log. */
  readonly word: 'backup' | 'restore';
  readonly resource: Resource<T>;
  /** Fields of the status. */
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

/** For the map of operations. */
export const subjectIn = <T extends Followed>({ kind }: FollowedKind<T>, object: T): Subject => {
  const { name, uid } = object.metadata;
  return { kind, name, uid, isSealed: isJournalSealed(object) };
};
