import { z } from 'zod';
import { CodedError, isCode, messageOf } from '../../base/index.ts';
import { STORAGE_CONFIG } from '../http/remote-storage.ts';
import { type BlobId, blobId, type BlobStorage, type SignalOptions } from '../storage.ts';

/** Kopia: repo/blob/s3/s3_storage_config.go (v0.23.1). Without a prefix: for all blobs. */
const configSchema = z.looseObject({
  blobOptions: z
    .array(
      z.looseObject({
        prefix: z
          .string()
          .nullish()
          .transform((text) => text ?? ''),
        storageClass: z
          .string()
          .nullish()
          .transform((text) => text ?? ''),
      }),
    )
    .nullish()
    .transform((entries) => entries ?? []),
});
type Entries = z.infer<typeof configSchema>['blobOptions'];

/** Our choice: a few entries have some hundred bytes. */
const CONFIG_BYTES_MAX = 64 << 10;

/**
 * Storage classes of blobs by the start of their names, from `.storageconfig` beside the blobs.
 * Kopia reads it when it opens a bucket. Here the first put reads it, so restores do not request
 * it.
 */
export class StorageClasses {
  readonly #storage: Pick<BlobStorage, 'displayName' | 'getBlob'>;
  #entries: Promise<Entries> | undefined;

  constructor(storage: Pick<BlobStorage, 'displayName' | 'getBlob'>) {
    this.#storage = storage;
  }

  /** Undefined for the bucket's default. Throws `BAD_STORAGE_CONFIG` and errors of the storage. */
  async of(id: BlobId, { signal }: SignalOptions): Promise<string | undefined> {
    // The first put reads it for all puts, so its signal must not end the read.
    this.#entries ??= this.#load().catch((error: unknown) => {
      this.#entries = undefined;
      throw error;
    });
    const entries = await this.#entries;
    signal?.throwIfAborted();
    const found = entries.find(({ prefix }) => id.startsWith(prefix));
    return found?.storageClass === '' ? undefined : found?.storageClass;
  }

  async #load(): Promise<Entries> {
    let bytes: Uint8Array;
    try {
      bytes = await this.#storage.getBlob(blobId(STORAGE_CONFIG), { lengthMax: CONFIG_BYTES_MAX });
    } catch (error) {
      // Amazon denies a missing object if s3:ListBucket has a condition on the prefix.
      if (isCode(error, 'BLOB_NOT_FOUND', 'STORAGE_DENIED')) return [];
      throw error;
    }
    try {
      return configSchema.parse(JSON.parse(Buffer.from(bytes).toString('utf8'))).blobOptions;
    } catch (cause) {
      const text = `cannot read ${STORAGE_CONFIG} of ${this.#storage.displayName}: ${messageOf(cause)}`;
      const advice = 'correct it or delete it';
      throw new CodedError('BAD_STORAGE_CONFIG', `${text}; ${advice}`, { cause });
    }
  }
}
