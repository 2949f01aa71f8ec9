/** Settings from outside: environment, files, later ConfigMaps. */
export { defaultClient, environment } from './environment.ts';
export {
  type Connection,
  type Connections,
  loadConnections,
  saveConnections,
} from './connections.ts';
export {
  type BackupStorageLocation,
  type LocationFiles,
  parseBackupStorageLocation,
  archiveLocation,
  repositoryLocation,
  type StorageKind,
  storageKindOf,
} from './backup-storage-location.ts';
export { cgroupMemoryBytes, type ReadText } from './cgroup.ts';
