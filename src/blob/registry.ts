import { openFilesystemStorage, type StorageModes } from './filesystem/filesystem-storage.ts';
import { SHARDS_NEW } from './filesystem/sharding.ts';
import { STALL_MS } from './http/transfer.ts';
import type { RemoteSettings, RemoteStorage } from './http/remote-storage.ts';
import { type FileLocation, type Location, parseLocation } from './location.ts';
import type { Bucket } from './bucket.ts';
import { openFilesystemBucket } from './filesystem/filesystem-bucket.ts';
import type { BlobStorage, TransferSettings } from './storage.ts';
import { writeOnce } from './wrappers/write-once.ts';
import type { StorageRetryOptions } from './wrappers/retrying.ts';

export interface OpenStorageOptions extends Partial<TransferSettings> {
  /** Make what is missing (a directory), for a repository about to be created. */
  create?: boolean;
  /** As if the location did not say that it is written once. */
  mayReplace?: boolean;
  /**
   * A repository lies there: what Kopia has told the bucket about its blobs holds
   * (`.storageconfig`).
   */
  isRepository?: boolean;
  /** Access modes of a repository in a directory. Default: the modes from its creation. */
  modes?: Partial<StorageModes>;
}

/**
 * Opens a location: a path, or a URL ({@link parseLocation}). Libraries of cloud storages are
 * loaded when they are needed. Throws `BAD_LOCATION` and what the storage throws.
 */
export async function openStorage(
  location: string,
  {
    create = false,
    mayReplace = false,
    isRepository = false,
    modes = {},
    ...given
  }: OpenStorageOptions = {},
): Promise<BlobStorage> {
  const parsed = parseLocation(location);
  if (parsed.kind !== 'file') {
    const storage = await openRemote(parsed, settingsOf(given, isRepository));
    return parsed.writeOnce === true && !mayReplace ? writeOnce(storage) : storage;
  }
  return openFilesystemStorage({
    path: parsed.path,
    modes,
    ...(create && { create: SHARDS_NEW }),
  });
}

/**
 * Opens what lies at a location beside repositories: objects under keys. Throws what
 * {@link openStorage} throws.
 */
export async function openBucket(
  location: string,
  given: Partial<TransferSettings> & { readonly retries?: StorageRetryOptions } = {},
): Promise<Bucket> {
  const parsed = parseLocation(location);
  if (parsed.kind === 'file') return openFilesystemBucket(parsed.path);
  const { RemoteBucket } = await import('./http/remote-bucket.ts');
  return new RemoteBucket(await openRemote(parsed, settingsOf(given, false)), given.retries);
}

const settingsOf = (given: Partial<TransferSettings>, isRepository: boolean): RemoteSettings => ({
  isRepository,
  stallMs: given.stallMs ?? STALL_MS,
  // eslint-disable-next-line no-restricted-properties -- the chains of cloud credentials are the environment's
  environment: given.environment ?? process.env,
});

async function openRemote(
  location: Exclude<Location, FileLocation>,
  settings: RemoteSettings,
): Promise<RemoteStorage> {
  switch (location.kind) {
    case 's3':
      return (await import('./s3/s3-storage.ts')).openS3Storage(location, settings);
    case 'azblob':
      return (await import('./azure/azure-storage.ts')).openAzureStorage(location, settings);
    case 'gs':
      return (await import('./gcs/gcs-storage.ts')).openGcsStorage(location, settings);
  }
}
