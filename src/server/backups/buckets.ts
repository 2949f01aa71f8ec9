import { bucketOf, type RestoreRef, signingBy, signWith } from '../../archive/index.ts';
import type { Logger } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { isWriteOnce, requiresSignature } from '../../config/index.ts';
import {
  loadLocation,
  openLocationBucket,
  repositoryPasswords,
} from '../../repository-access/index.ts';
import { RestoreBucket } from '../restores/files/restore-bucket.ts';
import type { LocationStoreOptions } from '../locations/location-stores.ts';
import type { Buckets, OpenBucket } from './contract.ts';

export interface LocationBucketsOptions extends Omit<LocationStoreOptions, 'openStorage'> {
  readonly openBucket: (location: string) => Promise<Bucket>;
  readonly logger?: Logger | undefined;
}

/** The buckets of BackupStorageLocations, by the credentials that their Secrets hold when one is opened. */
export class LocationBuckets implements Buckets {
  readonly #options: LocationBucketsOptions;

  constructor(options: LocationBucketsOptions) {
    this.#options = options;
  }

  async open(name: string, signal: AbortSignal, restore?: RestoreRef): Promise<OpenBucket> {
    const options = { ...this.#options, signal };
    const location = await loadLocation(name, options);
    const once = { isWriteOnce: isWriteOnce(location), logger: options.logger };
    const { client, namespace } = options;
    const signing = await signingBy(await repositoryPasswords(options));
    let files: RestoreBucket | undefined;
    const opened = await openLocationBucket(location, options, async (place) => {
      const bucket = await options.openBucket(place);
      if (!restore) return bucketOf(bucket, once);
      const { name: ofRestore, uid } = restore;
      files = new RestoreBucket(bucket, {
        ...{ client, namespace, location: name, restore: { name: ofRestore, uid } },
      });
      return bucketOf(files, once);
    });
    signWith(opened.bucket, { signing, isRequired: requiresSignature(location) });
    return {
      bucket: opened.bucket,
      ...(files && { files }),
      [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
    };
  }
}
