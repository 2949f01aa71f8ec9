import {
  CodedError,
  type CodedErrorOptions,
  codeOf,
  isCode,
  type Nanoseconds,
  retryOf,
  type RetryOptions,
} from '../base/index.ts';

export type BlobId = string & { readonly brand: 'BlobId' };
export const blobId = (text: string): BlobId => text as BlobId;

export interface BlobMetadata {
  readonly id: BlobId;
  readonly lengthBytes: number;
  /** When the blob was written, by the storage's clock. */
  readonly timestampNs: Nanoseconds;
}

export interface GetOptions {
  /** First byte wanted; the whole blob when neither this nor `lengthBytes` is given. */
  offset?: number;
  /** Exactly this many bytes, or an error: a short answer is never returned. */
  lengthBytes?: number;
  /**
   * A blob that is longer is refused with `DAMAGED_BLOB` before its bytes are read. For reads of
   * the whole.
   */
  lengthMax?: number;
  /** Where to put the bytes; at least as long as the answer, may be shared memory. */
  into?: Uint8Array | undefined;
  /** From the storage itself, past every cache: what was read before is not what it should be. */
  fresh?: boolean;
  signal?: AbortSignal | undefined;
}

export type RetentionMode = 'GOVERNANCE' | 'COMPLIANCE';

/** Object lock: until then the storage itself refuses to delete or overwrite. */
export interface Retention {
  mode: RetentionMode;
  periodNs: Nanoseconds;
}

export interface SignalOptions {
  signal?: AbortSignal | undefined;
}

export interface ListOptions extends SignalOptions {
  /**
   * How a page that failed is asked for again, so that a long listing need not begin anew. What
   * fails for good then carries the fact `tries`. Storages without pages do not look at it.
   */
  pageRetries?: Omit<RetryOptions, 'signal'> | undefined;
}

/** What storages over a network are told about their requests. */
export interface TransferSettings {
  /** A request that moves no byte for this long is cut and may be tried again. */
  readonly stallMs: number;
  /** Where credentials, proxies and regions are looked for besides the location. */
  readonly environment: NodeJS.ProcessEnv;
}

export interface PutOptions {
  /** Object lock; storages without it refuse with `UNSUPPORTED_PUT`. */
  retention?: Retention;
  /**
   * Refuse with `BLOB_EXISTS` when the blob is there; storages without it say `UNSUPPORTED_PUT`.
   */
  doNotRecreate?: boolean;
  signal?: AbortSignal | undefined;
}

export interface UnfinishedPutsOptions extends SignalOptions {
  /** Only what was written last before this time of the storage's own clock. */
  readonly beforeNs: Nanoseconds;
  /** Only count. */
  readonly dryRun: boolean;
}

/** What puts that never ended left in a storage. */
export interface UnfinishedPuts {
  readonly count: number;
  readonly lengthBytes: number;
}

/**
 * Named bytes in storage. What every implementation promises (the suite in test/contract holds them
 * to it):
 * - `putBlob` is atomic: others see the old bytes or the new, never a part. It overwrites.
 * - What was put is seen by every `getBlob` and `listBlobs` that starts afterwards.
 * - `getBlob` and `getMetadata` of a missing blob throw `BLOB_NOT_FOUND`; a range outside of the
 * blob throws `INVALID_RANGE`; `deleteBlob` of a missing blob succeeds.
 * - `listBlobs` yields each matching blob once, in any order; blobs put or deleted meanwhile may or
 * may not appear.
 * - Every method may be called by many callers at once; the implementation bounds its requests.
 */
export interface BlobStorage extends AsyncDisposable {
  /** For messages: where this is, without credentials. */
  readonly displayName: string;
  /** Whether `retention` and {@link extendRetention} are of use here. */
  readonly hasObjectLock: boolean;
  /**
   * Features that the service does not support, and their replacements: one sentence each, for
   * people.
   */
  readonly adaptations?: readonly string[];
  /** Its location says that no blob is put twice. */
  readonly isWriteOnce?: boolean;
  getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array>;
  getMetadata(id: BlobId, options?: SignalOptions): Promise<BlobMetadata>;
  /** `data` in pieces that follow one another; not kept after the promise settles. */
  putBlob(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void>;
  deleteBlob(id: BlobId, options?: SignalOptions): Promise<void>;
  listBlobs(prefix: string, options?: ListOptions): AsyncIterable<BlobMetadata>;
  /**
   * The folders right below a prefix, which is empty or ends with `/`: what keys have before the
   * next `/`, each once.
   */
  listFolders(prefix: string, options?: ListOptions): AsyncIterable<string>;
  /**
   * A URL by which anybody gets the blob with a plain GET, for so long. It is made whether the blob
   * is there or not. Storages and credentials that can make none throw `UNSUPPORTED_URL`.
   */
  signedUrl(id: BlobId, lifetimeMs: number, options?: SignalOptions): Promise<string>;
  /**
   * Whether the place itself lets blobs be locked, as far as it says so and this may be asked: of
   * one with {@link hasObjectLock} where it has to be switched on.
   */
  isLockable?(options?: SignalOptions): Promise<boolean | undefined>;
  /**
   * Puts the end of a blob's retention off; one that ends later, and is as strong, stays as it is.
   * Storages without object lock throw `UNSUPPORTED_PUT`.
   */
  extendRetention(id: BlobId, retention: Retention, options?: SignalOptions): Promise<void>;
  /**
   * Removes what killed puts left behind, of whichever program. `beforeNs` lies far enough back
   * that none of them still runs. Only storages where such puts leave anything have it; undefined
   * where a wrapper finds none below it.
   */
  removeUnfinishedPuts?(options: UnfinishedPutsOptions): Promise<UnfinishedPuts | undefined>;
  close(): Promise<void>;
}

export class BlobNotFoundError extends CodedError {
  readonly blobId: BlobId;

  constructor(id: BlobId, options: CodedErrorOptions = {}) {
    super('BLOB_NOT_FOUND', `blob ${id} is not in the storage`, {
      facts: { blobId: id },
      ...options,
    });
    this.blobId = id;
  }
}

export function invalidRange(id: BlobId, offset: number, lengthBytes: number): CodedError {
  const range = `${offset}+${lengthBytes}`;
  return new CodedError(
    'INVALID_RANGE',
    `blob ${id} is shorter than the range ${range} asked for`,
    {
      facts: { blobId: id, offset, lengthBytes },
    },
  );
}

/** Throws `DAMAGED_BLOB` for a blob that is longer than its kind ever is. */
export function assertLength(id: BlobId, lengthBytes: number, lengthMax = Infinity): void {
  if (lengthBytes <= lengthMax) return;
  const text = `blob ${id} is damaged: it has ${lengthBytes} bytes, and blobs of its kind never have more than ${lengthMax}`;
  throw new CodedError('DAMAGED_BLOB', text, { facts: { blobId: id, lengthBytes } });
}

/** All blobs with a prefix, sorted by id. For short lists only. */
export async function listAll(storage: BlobStorage, prefix: string): Promise<BlobMetadata[]> {
  const blobs = await Array.fromAsync(storage.listBlobs(prefix));
  return blobs.sort((a, b) => (a.id < b.id ? -1 : 1));
}

/** Lasting refusals of a put or a deletion: no permission, no space, or a lock, for example. */
const REFUSALS = [
  ...['STORAGE_DENIED', 'STORAGE_FULL', 'STORAGE_READ_ONLY', 'STORAGE_CREDENTIALS'],
  ...['STORAGE_FAILED', 'BLOB_EXISTS', 'UNSUPPORTED_PUT', 'UNSUPPORTED_CHECKSUM'],
];

/**
 * Whether a storage refuses a put or a deletion for good. Errors of a storage that is away or busy
 * do not count: they can be retried.
 */
export const refusesWrites = (error: unknown): boolean =>
  REFUSALS.includes(codeOf(error) ?? '') && retryOf(error) === 'never';

/**
 * Whether a blob is there, asked for by name: a listing may be old. Throws what the storage throws.
 */
export async function hasBlob(storage: BlobStorage, id: BlobId): Promise<boolean> {
  try {
    await storage.getMetadata(id);
    return true;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return false;
    throw error;
  }
}
