import { CodedError } from '../../base/index.ts';
import type { Operation, Subject } from '../../item-operations/index.ts';
import { type Backup, BACKUPS, type BackupStatus, type Resource } from '../../kube/index.ts';
import { errorsText, type RunKind, subjectIn } from '../runs/run-kind.ts';

/** Typed with the fields that this server reads. */
export const BACKUP_RESOURCE = BACKUPS as Resource<Backup>;

export const BACKUP_RUNS: RunKind<Backup> = {
  kind: 'Backup',
  word: 'backup',
  resource: BACKUP_RESOURCE,
  counts: {
    attempted: 'backupItemOperationsAttempted',
    completed: 'backupItemOperationsCompleted',
    failed: 'backupItemOperationsFailed',
  },
  meanings: {
    New: () => 'the backup is asked for',
    Queued: () => 'it waits until fewer backups run, or until none of its namespaces is backed up',
    ReadyToStart: () => 'it is its turn',
    InProgress: () => 'its items are being backed up',
    WaitingForPluginOperations: () => 'its items are backed up, and operations for them go on',
    WaitingForPluginOperationsPartiallyFailed: (_, errors) =>
      `its items are backed up, with ${errorsText(errors)}, and operations for them go on`,
    Finalizing: () => 'its operations are over, and its files are being completed',
    FinalizingPartiallyFailed: (_, errors) =>
      `its operations are over, and its files are being completed, with ${errorsText(errors)}`,
    Completed: () => 'the backup is complete',
    PartiallyFailed: (name, errors) =>
      `the backup has ended with ${errorsText(errors)}, which "longshore backup describe ${name} --details" shows`,
    Failed: (name) => `the backup has failed; "longshore backup describe ${name}" tells why`,
    FailedValidation: (name) =>
      `the backup cannot be made as it is asked for; "longshore backup describe ${name}" tells why`,
    Deleting: () => 'the backup is being deleted, with its files and snapshots',
  },
};

export const statusOf = ({ status }: Backup): Readonly<BackupStatus> => status ?? {};
export const phaseOf = (backup: Backup): string => statusOf(backup).phase ?? '';

/**
 * Throws `DAMAGED_ARCHIVE` if the operations file lacks operations that the status counts. Somebody
 * has removed the file, or replaced it by the file of an earlier backup of this name.
 */
export function assertNoneLost(backup: Backup, operations: readonly Operation[]): void {
  const { backupItemOperationsAttempted: attempted = 0 } = statusOf(backup);
  const lost = attempted - operations.length;
  if (lost <= 0) return;
  const text = `${lost} of ${attempted} item operations are missing in the operations file of the backup, which is gone or of another backup`;
  throw new CodedError('DAMAGED_ARCHIVE', text);
}

/** The Backup as the operation map identifies it. */
export const subjectOf = (backup: Backup): Subject => subjectIn(BACKUP_RUNS, backup);
