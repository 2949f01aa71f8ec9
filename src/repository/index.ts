/**
 * A Kopia repository: format, index, contents and manifests. Reads, writes, verifies, repairs and
 * maintains them on blobs. Must not know snapshots, policies or the origin of volumes.
 */
export { DEFAULT_MEMORY_BYTES, MEMORY_BYTES_MIN, planBytes, planMemory } from './memory-plan.ts';
export {
  type Client,
  clientName,
  type DataPath,
  type DataPathOptions,
  openRepository,
  Repository,
  SLAB_BYTES,
} from './repository.ts';
export { adoptKilledSessions } from './killed-sessions.ts';
export { CLOCK_SKEW_NS_MAX, clockSkew } from './clock-skew.ts';
export {
  assertPasswordMayChange,
  changePassword,
  deriveNewKey,
  loadFormatToChange,
} from './format/change-password.ts';
export { createFormat, type NewFormat } from './format/create-format.ts';
export {
  BLOBCFG_BLOB,
  deriveKeyAhead,
  type Format,
  FORMAT_BLOB,
  loadFormat,
} from './format/format-blob.ts';
export type { IndexEntry } from './index/entry.ts';
export type { IndexMarks, MarkedRow } from './index/index-marks.ts';
export { ScratchFile } from './index/scratch-file.ts';
export {
  type ContentId,
  contentIdOf,
  contentIdOfKey,
  contentKey,
  hashOf,
  parseContentId,
  prefixOf,
} from './index/content-id.ts';
export type { ContentManager } from './content/content-manager.ts';
export type { NewContent } from './content/write-session.ts';
export { BLOCKS_MAX, groupByBlock } from './content/metadata-blocks.ts';
export { readPieceKeys } from './object/piece-keys.ts';
export { encodeIndirect, type IndirectEntry, objectLength } from './object/indirect.ts';
export {
  indexObjectOf,
  isDirectoryObject,
  objectId,
  type ObjectId,
  parseObjectId,
} from './object/object-id.ts';
export {
  listPieces,
  type ObjectPiece,
  readObject,
  readPiece,
  readRange,
  singly,
  streamObject,
  streamPieces,
  visitContents,
} from './object/object-reader.ts';
export { PieceCache } from './object/piece-cache.ts';
export { RandomObject } from './object/random-object.ts';
export {
  finishObject,
  type ObjectMark,
  ObjectWriter,
  writeMarked,
  writeObject,
  type WriteObjectOptions,
} from './object/object-writer.ts';
export { type Manifest, type ManifestId } from './manifest/manifest-manager.ts';
export {
  assertAnswers,
  isSampled,
  listPackLengths,
  type PackLengths,
  packProblem,
  type PackSample,
  type Problem,
  verifyContents,
  type VerifyCounters,
} from './verify.ts';
export {
  heedVerification,
  loadVerification,
  putVerification,
  recordAfterBackup,
  remainingDamage,
  type VerificationRecord,
} from './verification/record.ts';
export { repairRepository, type RepairReport } from './repair/repair.ts';
export { DamagedContents } from './content/damaged-contents.ts';
export {
  defaultParameters,
  loadMaintenanceParameters,
  putMaintenanceParameters,
} from './maintenance/parameters.ts';
export {
  keepReserveOf,
  type MaintenanceMode,
  type MaintenanceOptions,
  type MaintenanceReport,
  runMaintenance,
} from './maintenance/run-maintenance.ts';
export type { SafetyLevel } from './maintenance/safety.ts';
export { loadSchedule } from './maintenance/schedule.ts';
export {
  type TaskContext,
  type TaskPlan,
  TaskProgress,
  type TaskStats,
} from './maintenance/task.ts';
