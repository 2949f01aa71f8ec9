import { errorsText, type PhaseMeanings } from '../runs/phase-events.ts';

export const RESTORE_PHASES: PhaseMeanings = {
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
};
