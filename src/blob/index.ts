/**
 * Blob storage: named bytes with atomic puts. Has a contract, a folder for each provider, and
 * wrappers such as retries and limits. Knows nothing about the meaning of the bytes.
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
  type SignalOptions,
  type UnfinishedPutsOptions,
} from './storage.ts';
export { checkStorage, type CheckResult } from './check.ts';
export { absoluteLocation, parseLocation } from './location.ts';
export type { Body, Bucket, ObjectOptions, ObjectPutOptions } from './bucket.ts';
export { openBucket, openStorage, type OpenStorageOptions } from './registry.ts';
export { type StorageModes } from './filesystem/filesystem-storage.ts';
export { type FaultPlan, faulty } from './wrappers/faulty.ts';
export { metered, type MeteredStorage } from './wrappers/metered.ts';
export { guarded, type WriteGuard } from './wrappers/guarded.ts';
export { readOnly } from './wrappers/read-only.ts';
export { keepReserve, type ReservedStorage, withReserve } from './wrappers/reserve.ts';
export { METADATA_BLOCK_BYTES, withCache } from './wrappers/cached.ts';
export { withRetries } from './wrappers/retrying.ts';
export { type StorageActivity, watched } from './wrappers/activity.ts';
export { withThrottle } from './wrappers/throttled.ts';
