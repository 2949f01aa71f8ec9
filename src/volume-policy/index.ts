/**
 * Velero's resource policies: which volumes of a backup are snapshotted, backed up file by file, or skipped. Words: a document has rules,
 * each with conditions and an action; a view is a volume as conditions see it; a decision says what decided. Knows nothing of the API
 * server that documents and volumes come from.
 */
export { ACTION_TYPES, type ActionType, isOfVelero, type PolicyAction } from './actions.ts';
export {
  type CheckedVolume,
  type CheckOptions,
  checkVolumes,
  type GroupMember,
  type Outcome,
  type SnapshotHindrance,
  type Verdict,
  type VolumeGroup,
  type WantedSnapshot,
} from './check-volumes.ts';
export type { Conditions, VolumeView } from './conditions.ts';
export { type Because, becauseText, decidedBy, ruleText } from './because.ts';
export { movingRules, type MovingRule } from './data-movers.ts';
export {
  type BackupChoices,
  type Decision,
  planSnapshot,
  refusedText,
  type SnapshotPlan,
  type SnapshotWay,
  type VolumeUser,
} from './decisions.ts';
export {
  factsOfPv,
  factsOfPvc,
  type PodFacts,
  type PodObject,
  type PodVolumeFacts,
  type PvcFacts,
  type PvcObject,
  type PvFacts,
  type PvObject,
  viewOf,
} from './facts.ts';
export { combineWithPolicy, type ScopedFilter } from './combined-filters.ts';
export type { FilterPolicies, IncludeExcludePolicy } from './filters.ts';
export { fileAnnotationsOf, type PodView } from './legacy.ts';
export { ListedVolumes, type ListedVolumesOptions, type VolumeReads } from './listed-volumes.ts';
export {
  ignoredInGlobal,
  parsePolicyConfigMap,
  parseVolumePolicies,
  type VolumePolicies,
  withGlobalPolicies,
} from './policies.ts';
export { readPolicyFile } from './policy-file.ts';
export { BadVolumePolicyError, type Place, type PolicyProblem } from './problems.ts';
export type { VolumeRule } from './rule.ts';
export {
  SKIP_REASONS,
  type SkippedVolume,
  SkippedVolumes,
  skippedReason,
} from './skipped-volumes.ts';
export {
  VolumeHelper,
  type VolumeHelperOptions,
  type VolumeItem,
  type VolumeLookup,
  whyUnbound,
} from './volume-helper.ts';
export { cut, joined, YamlDocument } from './yaml-document.ts';
export { type Field, fieldsOf } from './yaml-fields.ts';
