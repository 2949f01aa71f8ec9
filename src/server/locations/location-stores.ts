import type { BlobStorage } from '../../blob/index.ts';
import {
  bucketLocation,
  isWriteOnce,
  parseBackupStorageLocation,
  retentionOf,
  type StorageKind,
} from '../../config/index.ts';
import type { BackupStorageLocation, KubeClient } from '../../kube/index.ts';
import { loadCustomerKeyFile, loadLocationFiles } from '../../repository-access/index.ts';

export interface LocationStoreOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  /** Credentials and certificates are written there for the storage's libraries. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** Makes no request, and does not retry. */
  readonly openStorage: (location: string) => Promise<BlobStorage>;
}

/**
 * Opens the storage of a location with the current credentials of its Secrets. The caller closes
 * it. Throws `BAD_STORAGE_LOCATION`, `BAD_LOCATION`, `NO_PASSWORD`, and errors of the API server
 * and of the storage.
 */
export async function openLocation(
  location: BackupStorageLocation,
  options: LocationStoreOptions,
  signal: AbortSignal,
): Promise<BlobStorage> {
  const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
  // Reports an invalid location before its Secrets are read.
  bucketLocation(parsed);
  isWriteOnce(parsed);
  retentionOf(parsed);
  const files = {
    ...(await loadLocationFiles({ ...options, signal }, parsed)),
    customerKeyFile: await loadCustomerKeyFile({ ...options, signal }, parsed),
  };
  signal.throwIfAborted();
  return options.openStorage(bucketLocation(parsed, files));
}
