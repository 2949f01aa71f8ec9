/**
 * The backup of a cluster's objects: selection, order, and the steps for each object. Follows
 * Velero's pkg/backup and pkg/util/collections. Reads and stores objects only through interfaces;
 * knows no storage and no phases.
 */
export { NamespaceFilter } from './filters/namespaces.ts';
export {
  oldResourceFilter,
  type ResourceFilter,
  type ResourceFinder,
  scopedResourceFilter,
  typeLists,
  typeOf,
  usesOldLists,
} from './filters/resources.ts';
export { labelErrors, listErrors, namespaceListErrors } from './filters/list-errors.ts';
export { BACKUP_DEFAULTS, type BackupDefaults, setDefaults } from './backup-defaults.ts';
export {
  moverErrors,
  type PolicySummary,
  validateBackup,
  type ValidationSources,
} from './validation.ts';
export { type About, type BackupLog, type ResultLists, Results, sentenceOf } from './results.ts';
export { idOf, refOf } from './items/item.ts';
export type { ReadAhead } from './run/lookahead.ts';
export { ItemList } from './items/item-list.ts';
export { Spool } from './items/spool.ts';
export { collectItems } from './items/collector.ts';
export { commandOf, type ExecQuestion, type PodExec, runExecHook } from './hooks/run-hook.ts';
export type {
  ActionContext,
  ActionOutput,
  ActionSelector,
  BackupAction,
  BlockAction,
  FinishedItem,
  HookCounts,
  ItemJournal,
  ItemSink,
  ResourceIdentifier,
  StartedOperation,
  VolumeStepResult,
  VolumeSteps,
} from './run/contract.ts';
export { ItemBackupper } from './run/item-backupper.ts';
export { BackedUp, type ResourceNames } from './run/backed-up-items.ts';
export { ProgressTeller } from './run/progress.ts';
export { resolveActions, type Resolved } from './run/resolved-actions.ts';
export {
  type BackupRunOptions,
  type BackupRunResult,
  type Progress,
  runBackup,
} from './run/run-backup.ts';
export { assertSingleRun } from './run/assert-single-run.ts';
export { unfreezePods } from './run/unfreeze-pods.ts';
export { openObjectActions } from './actions/object-actions.ts';
export { goDurationNs, goDurationText } from './hooks/durations.ts';
export { type FineFilter, FineFilters, type FinePolicies } from './filters/fine-filters.ts';
export { NameLists } from './filters/name-lists.ts';
export {
  MatchedHooks,
  MatchedSelectors,
  UnmatchedNames,
  type UnmatchedPart,
} from './filters/unmatched-names.ts';
