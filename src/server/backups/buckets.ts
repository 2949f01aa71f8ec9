import { CodedError } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { parseBackupStorageLocation } from '../../config/index.ts';
import { BACKUP_STORAGE_LOCATIONS, type BackupStorageLocation } from '../../kube/index.ts';
import { openLocationBucket } from '../../repository-access/index.ts';
import type { LocationStoreOptions } from '../locations/location-stores.ts';
import type { Buckets, OpenBucket } from './contract.ts';

export interface LocationBucketsOptions extends Omit<LocationStoreOptions, 'openStorage'> {
  readonly openBucket: (location: string) => Promise<Bucket>;
}

/** The buckets of BackupStorageLocations, by the credentials that their Secrets hold when one is opened. */
export class LocationBuckets implements Buckets {
  readonly #options: LocationBucketsOptions;

  constructor(options: LocationBucketsOptions) {
    this.#options = options;
  }

  async open(name: string, signal: AbortSignal): Promise<OpenBucket> {
    const { client, namespace, openBucket } = this.#options;
    const location: BackupStorageLocation | undefined = await client.find(
      BACKUP_STORAGE_LOCATIONS,
      { namespace, name },
      { signal },
    );
    if (!location) {
      throw new CodedError('NO_LOCATION', `BackupStorageLocation.velero.io "${name}" not found`);
    }
    const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
    return openLocationBucket(parsed, { ...this.#options, signal }, openBucket);
  }
}
