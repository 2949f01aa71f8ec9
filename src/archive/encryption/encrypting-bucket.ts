import { CodedError, isCode } from '../../base/index.ts';
import type {
  Body,
  Bucket,
  ObjectOptions,
  ObjectPutOptions,
  Retention,
  SignalOptions,
} from '../../blob/index.ts';
import { backupKey, isArchiveName, moverLogsFolder, restoreKey } from '../layout.ts';
import type { Signing } from '../signing/signature.ts';
import { fileOf, runFolderOf, sealsFolder } from '../write-once/version-keys.ts';
import { stamped, unstamped } from './stamp.ts';
import { assertPlain, decrypted, encrypted } from './encrypted-body.ts';

export interface EncryptionOptions {
  readonly keys: Signing | undefined;
  /** Encrypts new files. Encrypted files can always be read. */
  readonly encrypts: boolean;
}

/**
 * Encrypts the files of backups and restores, and decrypts them for readers. Plain files in the
 * same bucket are read unchanged. Journals are sealed, and files of operations stamped, in every
 * location: a server trusts them after a restart.
 */
export class EncryptingBucket implements Bucket {
  readonly displayName: string;
  readonly #bucket: Bucket;
  readonly #options: EncryptionOptions;

  constructor(bucket: Bucket, options: EncryptionOptions) {
    this.displayName = bucket.displayName;
    this.#bucket = bucket;
    this.#options = options;
  }

  async put(key: string, body: Body, options: ObjectPutOptions = {}): Promise<void> {
    const file = fileOf(key) ?? key;
    const current = this.#options.keys?.fileKey;
    if (!this.#encrypts(file, options)) {
      const isStamped = current !== undefined && kindOf(file) === 'operations';
      await this.#bucket.put(key, isStamped ? stamped(body, current, file) : body, options);
      return;
    }
    if (!current) throw options.isSealed === true ? noKeyNow(file) : cannotEncrypt();
    const place = { key: file, ownerUid: options.ownerUid };
    await this.#bucket.put(key, encrypted(body, current, place), options);
  }

  #encrypts(file: string, { isSealed }: ObjectPutOptions): boolean {
    const { encrypts, keys } = this.#options;
    if (encrypts && isSecret(file)) return true;
    const kind = kindOf(file);
    return kind === 'left' ? keys?.fileKey !== undefined : kind === undefined && isSealed === true;
  }

  /** Also throws `NO_ARCHIVE_KEY`, retryable, and `DAMAGED_ARCHIVE`. */
  get(key: string, options: ObjectOptions = {}): AsyncIterable<Uint8Array> {
    const file = fileOf(key) ?? key;
    const body = this.#bucket.get(key, options);
    if (!isSecret(file) && options.isSealed !== true) return body;
    const place = { key: file, ownerUid: options.ownerUid, isSealed: options.isSealed };
    const keyOf = (id: string): Buffer | undefined => {
      const { keys } = this.#options;
      if (!keys && options.isSealed === true) throw noKeyNow(file);
      return keys?.fileKeyOf(id);
    };
    if (kindOf(file) !== 'operations') return decrypted(body, keyOf, place);
    return decrypted(body, keyOf, place, (plain) => unstamped(plain, keyOf, place));
  }

  has(key: string, options?: SignalOptions): Promise<boolean> {
    return this.#bucket.has(key, options);
  }

  delete(key: string, options?: SignalOptions): Promise<void> {
    return this.#bucket.delete(key, options);
  }

  list(prefix: string, options?: SignalOptions): AsyncIterable<string> {
    return this.#bucket.list(prefix, options);
  }

  listFolders(prefix: string, options?: SignalOptions): AsyncIterable<string> {
    return this.#bucket.listFolders(prefix, options);
  }

  /** Throws `UNSUPPORTED_URL` for an encrypted file. Missing files have URLs as elsewhere. */
  async signedUrl(key: string, lifetimeMs: number, options?: SignalOptions): Promise<string> {
    if (isSecret(fileOf(key) ?? key)) {
      try {
        await assertPlain(key, this.#bucket.get(key, options));
      } catch (error) {
        if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
      }
    }
    return this.#bucket.signedUrl(key, lifetimeMs, options);
  }

  async extendRetention(key: string, retention: Retention, options?: SignalOptions): Promise<void> {
    if (this.#bucket.extendRetention) {
      await this.#bucket.extendRetention(key, retention, options);
      return;
    }
    const text = `${this.displayName} does not lock objects`;
    throw new CodedError('UNSUPPORTED_PUT', text);
  }

  close(): Promise<void> {
    return this.#bucket.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** The reason why an encrypting location cannot be used. */
export const CANNOT_ENCRYPT =
  'its annotation longshore.io/encrypt-archive needs a secret repository password: nothing is encrypted with static-passw0rd, which everybody knows. Change it with "longshore repository change-password-all"';

const cannotEncrypt = (): CodedError =>
  new CodedError('CANNOT_ENCRYPT', `the location is not written to: ${CANNOT_ENCRYPT}`);

/**
 * Files that a server trusts after a restart. Velero reads `operations`, which in a plain location
 * are plain and have a stamp. Only servers read `left`, the notes of a run for its end. They are
 * encrypted if there is a key.
 */
function kindOf(key: string): 'operations' | 'left' | undefined {
  const [top = '', name = ''] = key.split('/');
  if (top === 'backups')
    return key === backupKey(name, 'itemOperations') ? 'operations' : undefined;
  if (top !== 'restores') return undefined;
  if (key === restoreKey(name, 'itemOperations')) return 'operations';
  return key === restoreKey(name, 'afterRun') ? 'left' : undefined;
}

/** A tool may be replacing the Secret of the password at this moment. */
const noKeyNow = (key: string): CodedError =>
  new CodedError(
    'NO_ARCHIVE_KEY',
    `${key} is encrypted, and there is no repository password: create the Secret of the password again`,
    { retry: 'backoff' },
  );

/**
 * Whether a file is encrypted. Files of backups and restores are, except for files that name their
 * owner. Logs of data movers are plain, because data movers lack the password.
 */
function isSecret(key: string): boolean {
  const folder = runFolderOf(key);
  if (folder === undefined || folder.length === key.length) return false;
  const [top = '', name = ''] = folder.split('/');
  if (!isArchiveName(name)) return false;
  const kind = top === 'backups' ? 'Backup' : 'Restore';
  if (key.startsWith(moverLogsFolder({ kind, name }))) return false;
  if (key.startsWith(sealsFolder(folder))) return false;
  const plain =
    kind === 'Backup'
      ? [backupKey(name, 'metadata'), backupKey(name, 'checksums')]
      : [restoreKey(name, 'owner')];
  return !plain.includes(key);
}
