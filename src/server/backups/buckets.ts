import {
  bucketOf,
  CANNOT_ENCRYPT,
  EncryptingBucket,
  type RestoreRef,
  type Signing,
  signingBy,
  signWith,
} from '../../archive/index.ts';
import { type Logger, messageOf } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { encryptsArchive, isWriteOnce, requiresSignature } from '../../config/index.ts';
import {
  keepArchiveKeys,
  loadLocation,
  openLocationBucket,
  repositoryPasswords,
} from '../../repository-access/index.ts';
import { ARCHIVE_KEYS_SECRET, type KubeClient, type KubeObject } from '../../kube/index.ts';
import { RestoreBucket } from '../restores/files/restore-bucket.ts';
import type { LocationStoreOptions } from '../locations/location-stores.ts';
import type { Buckets, OpenBucket } from './contract.ts';

export interface LocationBucketsOptions extends Omit<LocationStoreOptions, 'openStorage'> {
  readonly openBucket: (location: string) => Promise<Bucket>;
  readonly logger?: Logger | undefined;
}

/** The buckets of BackupStorageLocations. Credentials are read at each `open`. */
export class LocationBuckets implements Buckets {
  readonly #options: LocationBucketsOptions;
  #notKept = '';

  constructor(options: LocationBucketsOptions) {
    this.#options = options;
  }

  async open(name: string, signal: AbortSignal, restore?: RestoreRef): Promise<OpenBucket> {
    const options = { ...this.#options, signal };
    const location = await loadLocation(name, options);
    const once = { isWriteOnce: isWriteOnce(location), logger: options.logger };
    const { client, namespace } = options;
    const signing = await this.#signing(signal);
    const encryption = { keys: signing, encrypts: encryptsArchive(location) };
    let files: RestoreBucket | undefined;
    const opened = await openLocationBucket(location, options, async (place) => {
      const bucket = new EncryptingBucket(await options.openBucket(place), encryption);
      if (!restore) return bucketOf(bucket, once);
      const { name: ofRestore, uid } = restore;
      files = new RestoreBucket(bucket, {
        client,
        namespace,
        location: name,
        restore: { name: ofRestore, uid },
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

  /** Stores keys in their Secret before they sign or encrypt. */
  async #signing(signal: AbortSignal): Promise<Signing | undefined> {
    const access = { ...this.#options, signal };
    const passwords = await repositoryPasswords(access);
    const signing = await signingBy(passwords);
    const own = signing?.fileKey?.key.toString('hex');
    const wanted = [...(passwords?.earlierKeys ?? []), ...(own === undefined ? [] : [own])];
    // A refused read of the Secret is reported below.
    const keptKeys = passwords?.keptKeys;
    if (wanted.every((key) => keptKeys?.includes(key))) return signing;
    try {
      await keepArchiveKeys(access, wanted);
    } catch (error) {
      signal.throwIfAborted();
      const reason = messageOf(error);
      // Backups continue. Buckets are opened each minute, so the same reason is logged once.
      if (reason !== this.#notKept) {
        const fields = { secret: `${access.namespace}/${ARCHIVE_KEYS_SECRET}`, error: reason };
        this.#options.logger?.warn(fields, KEYS_NOT_KEPT);
      }
      this.#notKept = reason;
    }
    return signing;
  }
}

const KEYS_NOT_KEPT =
  'the keys of archives cannot be stored in their Secret: once the password is another one, old archives cannot be read. Check that the server may get, create and update this Secret';

/** Why an encrypting location cannot be written to. Throws `BAD_STORAGE_LOCATION`, `KUBE_*`. */
export async function encryptionProblem(
  { metadata }: KubeObject,
  { client, signal }: { readonly client: Pick<KubeClient, 'find'>; readonly signal: AbortSignal },
): Promise<string | undefined> {
  if (!encryptsArchive({ metadata })) return undefined;
  const { namespace = '' } = metadata;
  return (await hasSecretPassword({ client, namespace, signal })) ? undefined : CANNOT_ENCRYPT;
}

/** Whether the password is secret, and not Velero's default. Throws `KUBE_*`. */
export async function hasSecretPassword(
  access: Parameters<typeof repositoryPasswords>[0],
): Promise<boolean> {
  return (await signingBy(await repositoryPasswords(access)))?.canSign === true;
}
