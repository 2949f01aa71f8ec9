/**
 * Restores the objects of a backup into a cluster, as Velero's pkg/restore does. Uses the API
 * server through the interfaces in its options. Knows no archive, no storage and no phases.
 */
export {
  leftOutText,
  leftOutWarning,
  newestProven,
  ofSchedule,
  type RestorePolicySummary,
  type RestoreValidationSources,
  scheduleUidOf,
  validateRestore,
} from './validation.ts';
export type { RestoreAction } from './contract.ts';
export { openRestoreActions } from './actions/object-actions.ts';
export { ResourceModifiers } from './modifiers/modifiers.ts';
export { initHookAction } from './hooks/init-hooks.ts';
export { type HookRecord, type PodHooksLeft, RestoreHooks } from './hooks/exec-hooks.ts';
export { type PodWatch, watchRestoredPods } from './hooks/pod-watch.ts';
export { readYamlObject } from './modifiers/yaml-values.ts';
export { PluginConfigs } from './actions/plugin-config.ts';
export type {
  BackedUpItems,
  DoneItem,
  FinishedRestoreItem,
  PersistentVolumeSteps,
  PodVolumeSteps,
  RestoreJournal,
  RestoreSink,
  StartedRestoreOperation,
} from './run/contract.ts';
export {
  type RehearsalNote,
  type RehearsalResult,
  type RehearsedItem,
  rehearseRestore,
} from './rehearsal/rehearsal.ts';
export type { VolumesInPlace } from './run/in-place.ts';
export { type VersionChoice, wantedVersions } from './run/versions.ts';
export { isMadeBy } from './run/object-fields.ts';
export { isPodRestored } from './run/restored-pod.ts';
export { parsePriorities, RESTORE_PRIORITIES, type RestorePriorities } from './run/priorities.ts';
export {
  type RestoreProgress,
  type RestoreRunOptions,
  type RestoreRunResult,
  runRestore,
} from './run/run-restore.ts';
