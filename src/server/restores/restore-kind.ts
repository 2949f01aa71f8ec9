import { isNew, type Resource, type Restore, RESTORES } from '../../kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../plugin/index.ts';
import { isJournalSealed } from '../runs/stored-tries.ts';
import type { FollowedKind, FollowedStatus, OperationFields } from '../operations/followed-kind.ts';

/** With the fields that are looked at. */
export const RESTORE_RESOURCE = RESTORES as Resource<Restore>;

/** For what follows a run. */
export const FOLLOWED_RESTORES: FollowedKind<Restore> = {
  kind: 'Restore',
  word: 'restore',
  resource: RESTORE_RESOURCE,
  counts: {
    attempted: 'restoreItemOperationsAttempted',
    completed: 'restoreItemOperationsCompleted',
    failed: 'restoreItemOperationsFailed',
  },
};

/** The part of a Restore's status that the controllers after its run read and write. */
export interface AfterRunStatus extends FollowedStatus, OperationFields {
  readonly hookStatus?: { readonly hooksAttempted?: number; readonly hooksFailed?: number };
}

export const statusOf = ({ status }: Restore): AfterRunStatus => status ?? {};
export const phaseOf = (restore: Restore): string => statusOf(restore).phase ?? '';

/** A server of ours runs it, or has run it. */
export const isOurs = ({ metadata }: Restore): boolean =>
  metadata.annotations?.[MADE_BY_ANNOTATION] !== undefined;

/**
 * Before its run a Restore has no files: files of its name in the bucket belong to another Restore.
 */
export const hasBegun = (phase: string): boolean => !isNew(phase) && phase !== 'FailedValidation';

/** Of a Restore, for the map of its operations. */
export const subjectOf = (restore: Restore) => {
  const { name, uid } = restore.metadata;
  return { kind: 'Restore', name, uid, isSealed: isJournalSealed(restore) } as const;
};

/**
 * `true` on a Restore that is over, and whose files could not be published at its end, should its
 * location be written once.
 */
export const UNPUBLISHED = 'longshore.io/unpublished';
