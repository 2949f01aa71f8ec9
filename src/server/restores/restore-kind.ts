import { isNew, type Resource, type Restore, RESTORES } from '../../kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../plugin/index.ts';
import { isJournalSealed } from '../runs/journal-tries.ts';
import type { FollowedKind, FollowedStatus, OperationFields } from '../operations/followed-kind.ts';

/** Typed with the fields that this server reads. */
export const RESTORE_RESOURCE = RESTORES as Resource<Restore>;

/** Used by the controllers after a run. */
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

/** The status fields that the controllers after the run read and write. */
export interface AfterRunStatus extends FollowedStatus, OperationFields {
  readonly hookStatus?: { readonly hooksAttempted?: number; readonly hooksFailed?: number };
}

export const statusOf = ({ status }: Restore): AfterRunStatus => status ?? {};
export const phaseOf = (restore: Restore): string => statusOf(restore).phase ?? '';

/** Whether Longshore runs it or has run it. */
export const isOurs = ({ metadata }: Restore): boolean =>
  metadata.annotations?.[MADE_BY_ANNOTATION] !== undefined;

/** Before its run, a Restore has no files. Files of its name belong to another Restore. */
export const hasBegun = (phase: string): boolean => !isNew(phase) && phase !== 'FailedValidation';

/** The Restore as the operation map identifies it. */
export const subjectOf = (restore: Restore) => {
  const { name, uid } = restore.metadata;
  return { kind: 'Restore', name, uid, isSealed: isJournalSealed(restore) } as const;
};

/** `true` on a finished Restore whose files could not be published in a write-once location. */
export const UNPUBLISHED = 'longshore.io/unpublished';
