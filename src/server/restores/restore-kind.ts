import type { Subject } from '../../item-operations/index.ts';
import { isNew, type Resource, type Restore, RESTORES } from '../../kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../plugin/index.ts';
import {
  errorsText,
  type OperationFields,
  type RunKind,
  type RunStatus,
  subjectIn,
} from '../runs/run-kind.ts';

/** Typed with the fields that this server reads. */
export const RESTORE_RESOURCE = RESTORES as Resource<Restore>;

export const RESTORE_RUNS: RunKind<Restore> = {
  kind: 'Restore',
  word: 'restore',
  resource: RESTORE_RESOURCE,
  counts: {
    attempted: 'restoreItemOperationsAttempted',
    completed: 'restoreItemOperationsCompleted',
    failed: 'restoreItemOperationsFailed',
  },
  meanings: {
    New: () => 'the restore is asked for',
    InProgress: () => 'its items are being restored',
    WaitingForPluginOperations: () => 'its items are restored, and operations for them go on',
    WaitingForPluginOperationsPartiallyFailed: (_, errors) =>
      `its items are restored, with ${errorsText(errors)}, and operations for them go on`,
    Finalizing: () => 'its operations are over, and what is left is being done',
    FinalizingPartiallyFailed: (_, errors) =>
      `its operations are over, and what is left is being done, with ${errorsText(errors)}`,
    Completed: () => 'the restore is complete',
    PartiallyFailed: (name, errors) =>
      `the restore has ended with ${errorsText(errors)}, which "longshore restore describe ${name} --details" shows`,
    Failed: (name) => `the restore has failed; "longshore restore describe ${name}" tells why`,
    FailedValidation: (name) =>
      `the restore cannot be made as it is asked for; "longshore restore describe ${name}" tells why`,
  },
};

/** The status fields that the controllers after the run read and write. */
export interface AfterRunStatus extends RunStatus, OperationFields {
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
export const subjectOf = (restore: Restore): Subject => subjectIn(RESTORE_RUNS, restore);

/** `true` on a finished Restore whose files could not be published in a write-once location. */
export const UNPUBLISHED = 'longshore.io/unpublished';
