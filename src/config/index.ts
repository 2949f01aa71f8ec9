/** Settings from outside: environment, files, later ConfigMaps. */
export { defaultClient, environment } from './environment.ts';
export {
  type BackupStorageLocation,
  type LocationFiles,
  parseBackupStorageLocation,
  repositoryLocation,
  type StorageKind,
  storageKindOf,
} from './backup-storage-location.ts';
export { cgroupMemoryBytes, type ReadText } from './cgroup.ts';
