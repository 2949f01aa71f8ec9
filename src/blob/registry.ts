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
  /** Creates a missing directory for a new repository. */
  create?: boolean;
  /** Ignores the location's `writeOnce`. */
  mayReplace?: boolean;
  /** A repository lies there, so Kopia's settings in the bucket apply (`.storageconfig`). */
  isRepository?: boolean;
  /** Access modes for a repository in a directory. Default: the modes of its creation. */
  modes?: Partial<StorageModes>;
}

/**
 * Opens a location: a path, or a URL ({@link parseLocation}). Loads the library of a cloud only
 * when it is needed. Throws `BAD_LOCATION` and errors of the storage.
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

/** Opens the objects at a location that holds no repository. Throws like {@link openStorage}. */
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
  // eslint-disable-next-line no-restricted-properties -- chains of cloud credentials read it
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
