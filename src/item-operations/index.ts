/**
 * Item operations: what actions of plugins go on with after a backup or restore has handled an
 * item. Records, phases, what becomes of them by what plugins say (pure functions), and the map
 * that keeps them in memory and in the operations file. Knows no controller: who polls, and what
 * phase follows, is decided elsewhere.
 */
export { archiveStore, identityOfStored } from './archive-store.ts';
export { merged } from './merge.ts';
export {
  countsOf,
  failureLine,
  isAnyRunning,
  newlyFailed,
  type Observation,
  observed,
} from './observe.ts';
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
export { pluginAsker } from './plugin-asker.ts';
