import { openFilesystemStorage } from './filesystem/filesystem-storage.ts';
import { SHARDS_NEW } from './filesystem/sharding.ts';
import { STALL_MS } from './http/transfer.ts';
import { parseLocation } from './location.ts';
import type { BlobStorage, TransferSettings } from './storage.ts';

export interface OpenStorageOptions extends Partial<TransferSettings> {
  /** Make what is missing (a directory), for a repository about to be created. */
  create?: boolean;
}

/**
 * Opens a location: a path, or a URL ({@link parseLocation}). Libraries of cloud storages are loaded when
 * they are needed. Throws `BAD_LOCATION` and what the storage throws.
 */
export async function openStorage(
  location: string,
  { create = false, ...given }: OpenStorageOptions = {},
): Promise<BlobStorage> {
  const parsed = parseLocation(location);
  const settings = {
    stallMs: given.stallMs ?? STALL_MS,
    // eslint-disable-next-line no-restricted-properties -- the chains of cloud credentials are the environment's
    environment: given.environment ?? process.env,
  };
  switch (parsed.kind) {
    case 'file':
      return openFilesystemStorage({ path: parsed.path, ...(create && { create: SHARDS_NEW }) });
    case 's3':
      return (await import('./s3/s3-storage.ts')).openS3Storage(parsed, settings);
    case 'azblob':
      return (await import('./azure/azure-storage.ts')).openAzureStorage(parsed, settings);
    case 'gs':
      return (await import('./gcs/gcs-storage.ts')).openGcsStorage(parsed, settings);
  }
}
