/**
 * Blob storage: named bytes with atomic puts. One contract, a folder for each provider, wrappers for
 * retries, limits, counting and faults. Knows nothing of what the bytes mean.
 */
export {
  assertLength,
  type BlobId,
  blobId,
  type BlobMetadata,
  BlobNotFoundError,
  type BlobStorage,
  type GetOptions,
  hasBlob,
  listAll,
  type PutOptions,
  refusesWrites,
  type Retention,
  type RetentionMode,
  type SignalOptions,
  type UnfinishedPutsOptions,
} from './storage.ts';
export { checkStorage, type CheckOptions, type CheckResult } from './check.ts';
export { absoluteLocation, type Location, parseLocation, SCHEMES } from './location.ts';
export type { Body, Bucket, ObjectOptions, ObjectPutOptions } from './bucket.ts';
export { openBucket, openStorage, type OpenStorageOptions } from './registry.ts';
export { openFilesystemStorage, type StorageModes } from './filesystem/filesystem-storage.ts';
export { type FaultPlan, faulty, type StorageOperation } from './wrappers/faulty.ts';
export { metered, type MeteredStorage, type StorageCounters } from './wrappers/metered.ts';
export { guarded, type WriteGuard } from './wrappers/guarded.ts';
export { readOnly } from './wrappers/read-only.ts';
export { keepReserve, type ReservedStorage, withReserve } from './wrappers/reserve.ts';
export { type CacheOptions, withCache } from './wrappers/cached.ts';
export { type StorageRetryOptions, withRetries } from './wrappers/retrying.ts';
export { type StorageActivity, watched, type WatchedStorage } from './wrappers/watched.ts';
export { type ThrottleLimits, withThrottle } from './wrappers/throttled.ts';
