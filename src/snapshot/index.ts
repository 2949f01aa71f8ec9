/**
 * Snapshots on top of a repository: manifests, directories, policies and garbage collection. Must
 * not know file systems or devices. `uploader` fills and restores snapshots.
 */
export {
  CHECKPOINTED,
  compareEntries,
  decodeDirectory,
  DirectoryEncoder,
  type DirectoryEntry,
  type DirectorySummary,
  encodeDirectory,
  parseEntry,
  parseSummary,
  type EntryError,
  isCheckpointed,
} from './directory/directory.ts';
export {
  encodeSnapshot,
  getSnapshot,
  listReadableSnapshots,
  listSnapshots,
  type NewSnapshot,
  noSuchSnapshot,
  parseSnapshot,
  saveSnapshot,
  type Snapshot,
  USER_TAG_PREFIX,
} from './snapshot-manifest.ts';
export { formatSource, parseSource, type SourceInfo } from './source.ts';
export {
  compressorForFile,
  DEFAULT_POLICY,
  formatTarget,
  parseTarget,
  type Policy,
  policySchema,
  type PolicyTarget,
} from './policy/policy.ts';
export {
  deletePolicy,
  getDefinedPolicy,
  listPolicies,
  effectivePolicies,
  EXCLUDED_TAG,
  excludesOfSnapshot,
  loadPoliciesOf,
  loadPolicyTree,
  PolicyTree,
  putPolicy,
} from './policy/policy-manager.ts';
export { parseIgnoreFile, parseIgnorePattern } from './policy/ignore-pattern.ts';
export { parsePathPattern, type PathPattern } from './policy/path-pattern.ts';
export { expiredSnapshots, retentionReasons } from './policy/retention.ts';
export { DirectoryDecoder, readDirectory, streamDirectory } from './directory/directory-stream.ts';
export { findSnapshotId, isRelativeName } from './snapshot-name.ts';
export { changePins } from './pins.ts';
export { diffTrees, type TreeChange } from './tree-diff.ts';
export { SnapshotIds } from './snapshot-ids.ts';
export { findInDirectory } from './directory/find-in-directory.ts';
export { resolveEntry, resolveOrigin } from './resolve-entry.ts';
export { type Batches, walkDirectories, type WalkedEntry, walkTree } from './tree-walk.ts';
export { newTreeCounters, type TreeCounters, verifyTrees } from './verify/verify.ts';
export { type DamagedSnapshot } from './verify/damage-search.ts';
export { type VerificationReport, verifyRepository } from './verify/verification.ts';
export { forgetSnapshots } from './forget.ts';
export { planGarbageCollection } from './gc.ts';
export { ContentIdSet } from './key-set.ts';
export { attachRoot, findLostRoots, type LostRoot } from './verify/lost-roots.ts';
