import { goJson, isCode, type Logger, messageOf } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { type Checksums, checksumsSchema, sinceOthers } from './checksums.ts';
import { encodedBytes, type EncodedFile } from './encoded-files.ts';
import { backupSchema } from './files.ts';
import { decodeJson } from './json-file.ts';
import { backupKey } from './layout.ts';
import { type SignatureState, signingOf } from './signature.ts';

/** The file of checksums of each backup in a bucket. */
export class ChecksumsFile {
  readonly #bucket: Bucket;
  readonly #logger: Logger;

  constructor(bucket: Bucket, logger: Logger) {
    this.#bucket = bucket;
    this.#logger = logger;
  }

  /** Undefined where there is none, and for one that cannot be read: a file of ours must not keep a backup from being restored. */
  async load(name: string, options: SignalOptions): Promise<Checksums | undefined> {
    const key = backupKey(name, 'checksums');
    try {
      return await decodeJson(this.#bucket.get(key, options), key, checksumsSchema);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
      this.#logger.warn(
        { key, error: messageOf(error) },
        'checksums cannot be read, and are not used',
      );
      return undefined;
    }
  }

  /** Those that still hold by what the Backup's own file says. Undefined where the backup has none, as one of Velero's. */
  async loadValid(name: string, options: SignalOptions): Promise<Checksums | undefined> {
    const checksums = await this.load(name, options);
    if (!checksums) return undefined;
    const key = backupKey(name, 'metadata');
    return sinceOthers(
      checksums,
      await decodeJson(this.#bucket.get(key, options), key, backupSchema),
    );
  }

  async put(name: string, checksums: Checksums, options: SignalOptions): Promise<void> {
    await this.#bucket.put(
      backupKey(name, 'checksums'),
      this.encode(name, checksums).read(),
      options,
    );
  }

  /** Signed, where the password of the repositories is known. */
  encode(name: string, checksums: Checksums): EncodedFile {
    const payload = unsigned(checksums);
    const signature = signingOf(this.#bucket)?.signing?.sign(name, payload);
    return encodedBytes(
      Buffer.from(`${goJson({ ...payload, ...(signature && { signature }) })}\n`),
    );
  }

  /** Whether the checksums are what somebody with the password has written. */
  stateOf(name: string, checksums: Checksums | undefined): SignatureState {
    if (!checksums?.signature) return 'unsigned';
    const signing = signingOf(this.#bucket)?.signing;
    return signing?.check(name, unsigned(checksums), checksums.signature) ?? 'unknown';
  }
}

function unsigned(checksums: Checksums): object {
  const payload = { ...checksums };
  delete payload.signature;
  return payload;
}
