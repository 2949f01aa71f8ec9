import { errorsText, type PhaseMeanings } from '../runs/phase-events.ts';

export const BACKUP_PHASES: PhaseMeanings = {
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
};
