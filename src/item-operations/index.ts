/**
 * Item operations: work that plugin actions continue after a backup or restore has handled an item.
 * Holds the records, their phases, pure functions over plugin answers, and the map that keeps
 * operations in memory and in the operations file. Knows no controller: polling and the next phase
 * are decided elsewhere.
 */
export { archiveStore, identityOfStored } from './archive-store.ts';
export { merged } from './merge-operations.ts';
export {
  countsOf,
  failureLine,
  isAnyRunning,
  newlyFailed,
  type Observation,
  observed,
} from './operation-progress.ts';
export {
  actionOf,
  type BackupOperation,
  backupOperationSchema,
  type BegunOperation,
  isFinal,
  isRunning,
  keyOf,
  newOperation,
  type Operation,
  orderedRecord,
  postOperationItems,
  restoreOperationSchema,
  type Subject,
} from './operation.ts';
export {
  type OperationAsker,
  OperationMap,
  type OperationStore,
  type PollOptions,
  type Round,
} from './operation-map.ts';
export { pluginAsker } from './plugin-client.ts';
