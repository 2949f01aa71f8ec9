import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { CodedError } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { bucketLocation, parseBackupStorageLocation } from '../../config/index.ts';
import { BACKUP_STORAGE_LOCATIONS, type BackupStorageLocation } from '../../kube/index.ts';
import { loadCustomerKeyFile, loadLocationFiles } from '../../repository-access/index.ts';
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
    // One folder for each opened bucket: its files are read until it is closed.
    const directory = await mkdtemp(join(this.#options.directory, 'bucket-'));
    try {
      const options = { ...this.#options, directory, signal };
      const files = {
        ...(await loadLocationFiles(options, parsed)),
        customerKeyFile: await loadCustomerKeyFile(options, parsed),
      };
      signal.throwIfAborted();
      const bucket = await openBucket(bucketLocation(parsed, files));
      return {
        bucket,
        [Symbol.asyncDispose]: async () => {
          await bucket.close();
          await rm(directory, { recursive: true, force: true });
        },
      };
    } catch (error) {
      await rm(directory, { recursive: true, force: true });
      throw error;
    }
  }
}
