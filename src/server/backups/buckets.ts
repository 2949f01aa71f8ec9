import {
  bucketOf,
  CANNOT_ENCRYPT,
  EncryptingBucket,
  type RestoreRef,
  signingBy,
  signWith,
} from '../../archive/index.ts';
import type { Logger } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { encryptsArchive, isWriteOnce, requiresSignature } from '../../config/index.ts';
import {
  loadLocation,
  openLocationBucket,
  repositoryPasswords,
} from '../../repository-access/index.ts';
import type { KubeClient, KubeObject } from '../../kube/index.ts';
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
    const encryption = { keys: signing, encrypts: encryptsArchive(location) };
    let files: RestoreBucket | undefined;
    const opened = await openLocationBucket(location, options, async (place) => {
      const bucket = new EncryptingBucket(await options.openBucket(place), encryption);
      if (!restore) return bucketOf(bucket, once);
      const { name: ofRestore, uid } = restore;
      files = new RestoreBucket(bucket, {
        ...{ client, namespace, location: name, restore: { name: ofRestore, uid } },
      });
      return bucketOf(files, once);
    });
    const encrypts = encryptsArchive(location);
    signWith(opened.bucket, { signing, isRequired: requiresSignature(location), encrypts });
    return {
      bucket: opened.bucket,
      ...(files && { files }),
      [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
    };
  }
}

/** Why a location that encrypts cannot be written to. Throws `BAD_STORAGE_LOCATION`, `KUBE_*`. */
export async function encryptionProblem(
  { metadata }: KubeObject,
  { client, signal }: { readonly client: Pick<KubeClient, 'find'>; readonly signal: AbortSignal },
): Promise<string | undefined> {
  if (!encryptsArchive({ metadata })) return undefined;
  const { namespace = '' } = metadata;
  const signing = await signingBy(await repositoryPasswords({ client, namespace, signal }));
  return signing?.canSign === true ? undefined : CANNOT_ENCRYPT;
}
