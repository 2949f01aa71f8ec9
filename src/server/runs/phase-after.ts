import { isAnyRunning, type Operation } from '../../item-operations/index.ts';

/** What a backup or restore waits for next, by what went wrong so far. */
export const phaseAfterRun = (errors: number, operations: readonly Operation[]): string =>
  `${isAnyRunning(operations) ? 'WaitingForPluginOperations' : 'Finalizing'}${errors > 0 ? 'PartiallyFailed' : ''}`;
