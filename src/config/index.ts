/** Settings from outside: environment, files, locations. */
export { defaultClient, environment } from './environment.ts';
export {
  type Connection,
  type Connections,
  loadConnections,
  saveConnections,
} from './connections.ts';
export {
  type BackupStorageLocation,
  bucketLocation,
  customerKeySecret,
  isWriteOnce,
  encryptsArchive,
  requiresSignature,
  type LocationFiles,
  type LocationRetention,
  parseBackupStorageLocation,
  REPOSITORY_FOLDER,
  repositoryLocation,
  RETENTION,
  retentionOf,
  type StorageKind,
  storageKindOf,
} from './backup-storage-location.ts';
export { POD_RESOURCES_SHAPE, podResourcesOf } from './pod-resources.ts';
export { cgroupMemoryBytes } from './cgroup.ts';
