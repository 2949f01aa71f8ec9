/**
 * Files and directories of a volume: listings, reads and writes of whole small files, attributes by
 * descriptor. Also the contract of the threads that do this work and the codec's. Knows nothing of
 * repositories or Kopia's formats.
 */
export {
  type FileRange,
  KernelReads,
  type RangeToCompare,
  READ_BYTES,
  readParts,
  readRangeInto,
} from './compare-ranges.ts';
export {
  type DirectoryComparison,
  type DirectoryListing,
  LISTING_ENTRIES_MAX,
  lookAtNames,
  lookAtNamesIn,
  NO_ENTRIES,
  onlyDirectories,
  type PackedStream,
  readDirectory,
  type SameFiles,
  STAT_FIELDS,
} from './directory-listing.ts';
export { type BytePath, fsPath, toldCode } from './byte-path.ts';
export {
  CAPABILITY,
  DEFAULT_LIST,
  type ExtraRules,
  hasExtra,
  type KeptExtras,
  parseExtra,
  nodeIn,
  rawNameIn,
  readExtra,
  readExtraOf,
  recordedIn,
  type SpecialNode,
  withNote,
  withoutRawName,
  withoutXattrs,
} from './extra-attributes.ts';
export {
  applyAttributesToPinned,
  type FileAttributes,
  NOT_SET,
  type NotSet,
  RUNS_AS_OWNER,
} from './file-attributes.ts';
export { isAt, linkError, openDirectly, OPENS_MAX, pathOf } from './open-directly.ts';
export { type FileRead, type FileToRead, NO_LONGER_REGULAR, readFileInto } from './read-file.ts';
export type {
  OpenFailure,
  OpenItem,
  OpenResult,
  PartialSpans,
  RangeVerdicts,
  SealedItem,
  SealItem,
  ThreadPool,
  ThreadPoolFactory,
} from './thread-pool.ts';
export { makeNode, type NewFile, writeIntoFile, writeNewFile } from './write-file.ts';
