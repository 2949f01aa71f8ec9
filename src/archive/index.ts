/**
 * Velero's layout of a backup storage location: reads and writes the files of backups and restores.
 * Nouns: archive (all files of a backup), metadata (the Backup itself), contents (the tarball of
 * the items). Other files are item operations, volume infos, results, log and resource list. Knows
 * no reconcilers.
 */
export { BackupArchive } from './backup-archive.ts';
export type { BackupUpdate, NewBackup } from './encoded-files.ts';
export { IGNORE_MISSING } from './signing/missing-backups.ts';
export type { PreviousBackup } from './signing/deletion-notes.ts';
export { extendBackupLocks } from './backup-locks.ts';
export { StoredArchive } from './stored-archive.ts';
export { Contents } from './item-contents.ts';
export {
  type NativeSnapshot,
  type ResourceList,
  type Result,
  resultEntries,
  type Results,
  type StoredBackup,
} from './file-schemas.ts';
export {
  FORMAT_VERSION,
  type ItemDirectory,
  itemPath,
  itemPaths,
  type ItemPlace,
  parseItemPath,
} from './item-path.ts';
export {
  DOWNLOAD_KINDS,
  downloadKey,
  type DownloadKind,
  downloadOwner,
  foreignFolders,
  isArchiveName,
  isDownloadKind,
  backupFileOf,
  backupFolder,
  journalFolder,
  journalsFolder,
  type MoverLogOwner,
  moverLogsFolder,
  restoreFolder,
  restoreJournalFolder,
  restoreKey,
} from './layout.ts';
export { type MoverLog, MoverLogArchive } from './mover-logs.ts';
export { pluginBucket, type PluginBucketOptions } from './plugin-bucket.ts';
export { RestoreArchive, type RestoreFiles, type RestoreRef } from './restore-archive.ts';
export { ScratchFile } from './scratch-file.ts';
export {
  IGNORE_SIGNATURE,
  keyMissing,
  type SignatureState,
  signingBy,
  signingKey,
  type Signing,
  type SigningPasswords,
  signWith,
  WELL_KNOWN_PASSWORD,
} from './signing/signature.ts';
export { isFinal, isStoredOf, locationProblem, standingOf } from './backup-state.ts';
export {
  type BackupTrust,
  type FindingKind,
  type KnownObjects,
  type LocationFinding,
  type LocationSurvey,
  surveyLocation,
} from './location-survey.ts';
export {
  CONTENT_LIMITS,
  type ContentLimits,
  readTarball,
  storeTarball,
  tarMember,
  TarballWriter,
  updatedEntries,
} from './tarball.ts';
export { encodeFullHeader, END as TAR_END, type FullTarHeader, padding } from './tar/header.ts';
export type { TarEntry } from './tar/read-tar.ts';
export { type NewTarEntry, writeTar } from './tar/write-tar.ts';
export type { BackupVolumeInfo, RestoreVolumeInfo } from './volume-infos.ts';
export { assertPlain, ENCRYPTED_START_BYTES } from './encryption/encrypted-body.ts';
export { CANNOT_ENCRYPT, EncryptingBucket } from './encryption/encrypting-bucket.ts';
export { bucketOf } from './write-once/sealed-bucket.ts';
export { fileOf as fileOfVersion, sealsFolder } from './write-once/version-keys.ts';
export { WriteOnceBucket } from './write-once/write-once-bucket.ts';
