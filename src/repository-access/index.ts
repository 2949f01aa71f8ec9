/**
 * BackupRepositories: how one is found and asked for, and what opens the repository behind it, from the cluster's own objects. Moves
 * no bytes, and makes none of them ready: that is the server's work.
 */
export {
  type AccessOptions,
  ensureBackupRepository,
  findBackupRepository,
  loadRepositoryAccess,
  PASSWORD_KEY,
  PASSWORD_SECRET,
  type RepositoryAccess,
  type RepositoryQuery,
  repositoryLabels,
} from './backup-repository.ts';
export { loadLocationFiles, type LocationFilesOptions } from './location-files.ts';
