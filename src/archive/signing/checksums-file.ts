import { goJson, isCode, type Logger, messageOf } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { type Checksums, checksumsSchema, sinceOthers, stateOf } from './checksums.ts';
import { damaged } from '../damaged-error.ts';
import { encodedBytes, type EncodedFile } from '../encoded-files.ts';
import { backupSchema, type StoredBackup } from '../file-schemas.ts';
import { decodeJson } from '../json-file.ts';
import { backupKey } from '../layout.ts';
import { type SignatureState, signingOf } from './signature.ts';

/** The checksums file of each backup in a bucket. */
export class ChecksumsFile {
  readonly #bucket: Bucket;
  readonly #logger: Logger;

  constructor(bucket: Bucket, logger: Logger) {
    this.#bucket = bucket;
    this.#logger = logger;
  }

  /** Undefined for a missing or unreadable file: our own file must not prevent a restore. */
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

  /**
   * Loads checksums in order to change them, without sums of files that Velero has replaced.
   * Undefined for a backup without checksums. Throws `DAMAGED_ARCHIVE` for a wrong signature: a new
   * signature would hide the change.
   */
  async loadValid(
    name: string,
    options: SignalOptions,
  ): Promise<{ readonly checksums: Checksums; readonly isSigned: boolean } | undefined> {
    const checksums = await this.load(name, options);
    if (!checksums) return undefined;
    const key = backupKey(name, 'metadata');
    const backup = await decodeJson(this.#bucket.get(key, options), key, backupSchema);
    const state = this.stateOf(name, backup, checksums);
    if (state === 'wrong') throw damaged(backupKey(name, 'checksums'), 'its signature is wrong');
    return { checksums: sinceOthers(checksums, backup), isSigned: state === 'signed' };
  }

  /** Signed if `isSigned` is set and the password of the repositories is known. */
  async put(
    name: string,
    checksums: Checksums,
    { isSigned, ...options }: SignalOptions & { readonly isSigned: boolean },
  ): Promise<void> {
    const encoded = isSigned ? this.encode(name, checksums) : encodedJson(unsigned(checksums));
    await this.#bucket.put(backupKey(name, 'checksums'), encoded.read(), options);
  }

  /** Signed if the password of the repositories is known. */
  encode(name: string, checksums: Checksums): EncodedFile {
    const payload = unsigned(checksums);
    const signature = signingOf(this.#bucket)?.signing?.sign(name, payload);
    return encodedJson({ ...payload, ...(signature && { signature }) });
  }

  /** The state of the signature, for checksums and the Backup beside them. */
  stateOf(name: string, backup: StoredBackup, checksums: Checksums | undefined): SignatureState {
    if (!checksums?.signature) return 'unsigned';
    const signing = signingOf(this.#bucket)?.signing;
    const payload = unsigned(checksums);
    return signing?.check(name, payload, checksums.signature, stateOf(backup)) ?? 'unknown';
  }
}

const encodedJson = (value: object): EncodedFile => encodedBytes(Buffer.from(`${goJson(value)}\n`));

function unsigned(checksums: Checksums): Checksums {
  const payload = { ...checksums };
  delete payload.signature;
  return payload;
}
