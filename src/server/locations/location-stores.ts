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
  /** Where credentials and certificates are put for the storage's libraries to read. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** Makes no request, and tries nothing again. */
  readonly openStorage: (location: string) => Promise<BlobStorage>;
}

/**
 * The storage of a location, with all that Velero keeps there, by the credentials that its Secrets
 * hold now. Who opens it closes it. Throws `BAD_STORAGE_LOCATION`, `BAD_LOCATION`, `NO_PASSWORD`,
 * what the API server refuses, and what the storage throws.
 */
export async function openLocation(
  location: BackupStorageLocation,
  options: LocationStoreOptions,
  signal: AbortSignal,
): Promise<BlobStorage> {
  const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
  // What is wrong with it is told before its Secrets are asked for.
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
