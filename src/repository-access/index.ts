/**
 * BackupRepositories: finds and requests them, and reads from the cluster's objects how to open
 * their repositories. Moves no data. Does not make repositories ready, because the server does.
 */
export {
  ensureBackupRepository,
  findBackupRepository,
  loadRepositoryAccess,
  type RepositoryAccess,
  type RepositoryQuery,
  repositoryLabels,
} from './backup-repository.ts';
export { EnsuredRepositories } from './ensured-repositories.ts';
export { keepCredentials } from './kept-credentials.ts';
export {
  loadCredentialFile,
  loadCustomerKeyFile,
  loadLocation,
  loadLocationFiles,
  grantCommand,
  openLocationBucket,
  secretsOf,
  unreadableSecrets,
} from './location-files.ts';
export {
  ARCHIVE_KEYS,
  EARLIER_SIGNING_KEYS,
  isArchiveKey,
  keepArchiveKeys,
  NEXT_PASSWORD_KEY,
  PASSWORD_KEY,
  passwordIn,
  PREVIOUS_PASSWORD_KEY,
  type RepositoryPasswords,
  repositoryPasswords,
} from './passwords.ts';
export {
  type NotedVerification,
  type RepositoryVerdict,
  VERIFICATION_ANNOTATION,
  verificationOf,
} from './verification.ts';
