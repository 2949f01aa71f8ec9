/**
 * Velero's resource policies: which volumes of a backup get a snapshot, a file-system backup, or
 * are skipped. Words: a document has rules, each with conditions and an action. A view is a volume
 * as conditions see it. A decision includes its reason. Knows nothing of the API server.
 */
export { isOfVelero, type PolicyAction } from './actions.ts';
export {
  type CheckedVolume,
  type CheckOptions,
  checkVolumes,
  type GroupMember,
  type SnapshotHindrance,
  type Verdict,
  type VolumeGroup,
  type WantedSnapshot,
} from './check-volumes.ts';
export type { VolumeView } from './conditions.ts';
export { type Because, becauseText, decidedBy, ruleText } from './decision-reason.ts';
export { movingRules } from './data-movers.ts';
export { type Decision, planSnapshot, refusedText } from './decisions.ts';
export {
  factsOfPv,
  factsOfPvc,
  type PodObject,
  type PvcObject,
  type PvObject,
  viewOf,
} from './volume-facts.ts';
export { combineWithPolicy } from './combined-filters.ts';
export { fileAnnotationsOf, type PodView } from './pod-annotations.ts';
export { ListedVolumes, type ListedVolumesOptions, type VolumeReads } from './listed-volumes.ts';
export {
  ignoredInGlobal,
  parsePolicyConfigMap,
  parseVolumePolicies,
  type VolumePolicies,
  withGlobalPolicies,
} from './policies.ts';
export { readPolicyFile } from './policy-file.ts';
export { BadVolumePolicyError, type PolicyProblem } from './problems.ts';
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
export { cut, joined, YamlDocument } from './yaml/yaml-document.ts';
export { type Field, fieldsOf } from './yaml/yaml-fields.ts';
