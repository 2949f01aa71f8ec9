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
  /** Time of the write, by the storage's clock. */
  readonly timestampNs: Nanoseconds;
}

export interface GetOptions {
  /** First byte; the whole blob if neither this nor `lengthBytes` is given. */
  offset?: number;
  /** Exactly this many bytes, or an error. A short answer is never returned. */
  lengthBytes?: number;
  /** A longer blob throws `DAMAGED_BLOB` before its bytes are read. For reads of the whole. */
  lengthMax?: number;
  /** Memory for the bytes, at least as long as the answer. May be shared memory. */
  into?: Uint8Array | undefined;
  /** Reads from the storage itself, without caches, because the earlier bytes were wrong. */
  fresh?: boolean;
  signal?: AbortSignal | undefined;
}

export type RetentionMode = 'GOVERNANCE' | 'COMPLIANCE';

/** Object lock: the storage itself refuses to delete or overwrite during this period. */
export interface Retention {
  mode: RetentionMode;
  periodNs: Nanoseconds;
}

export interface SignalOptions {
  signal?: AbortSignal | undefined;
}

export interface MetadataOptions extends SignalOptions {
  /** Accepts an answer from a cache. The blob may be deleted already. */
  mayBeCached?: boolean;
}

export interface ListOptions extends SignalOptions {
  /**
   * Retries of a failed page, so that a long listing does not start again. The final error has the
   * fact `tries`. Storages without pages ignore it.
   */
  pageRetries?: Omit<RetryOptions, 'signal'> | undefined;
  /** Awaited before each request for a page but the first. Its rejection ends the listing. */
  beforeNextPage?: (() => Promise<void> | undefined) | undefined;
}

/** Settings of requests over a network. */
export interface TransferSettings {
  /** A request that moves almost no bytes for this long is cut, and may be retried. */
  readonly stallMs: number;
  /** Source of credentials, proxies and regions besides the location. */
  readonly environment: NodeJS.ProcessEnv;
}

export interface PutOptions {
  /** Object lock. Storages without it throw `UNSUPPORTED_PUT`. */
  retention?: Retention;
  /** Refuses with `BLOB_EXISTS` if the blob exists, or with `UNSUPPORTED_PUT`. */
  doNotRecreate?: boolean;
  signal?: AbortSignal | undefined;
}

export interface UnfinishedPutsOptions extends SignalOptions {
  /** Only puts whose last write was before this time, by the storage's own clock. */
  readonly beforeNs: Nanoseconds;
  /** Only count. */
  readonly dryRun: boolean;
}

/** Remains of unfinished puts. */
export interface UnfinishedPuts {
  readonly count: number;
  readonly lengthBytes: number;
}

/**
 * Named bytes in storage. Every implementation promises (the suite in test/contract tests it):
 * - `putBlob` is atomic: others see the old bytes or the new bytes. An existing blob is
 *   overwritten.
 * - Every later `getBlob` and `listBlobs` sees the put.
 * - `getBlob` and `getMetadata` of a missing blob throw `BLOB_NOT_FOUND`. A range outside of the
 *   blob throws `INVALID_RANGE`. `deleteBlob` of a missing blob succeeds.
 * - `listBlobs` yields each matching blob once, in any order. Blobs that are put or deleted
 *   meanwhile may be missing.
 * - Every method allows parallel calls. The implementation bounds its requests.
 */
export interface BlobStorage extends AsyncDisposable {
  /** For messages: the place, without credentials. */
  readonly displayName: string;
  /** Whether `retention` and {@link extendRetention} are supported. */
  readonly hasObjectLock: boolean;
  /** Unsupported features of the service, and their replacements: sentences for users. */
  readonly adaptations?: readonly string[];
  /** The location forbids to put a blob twice. */
  readonly isWriteOnce?: boolean;
  getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array>;
  getMetadata(id: BlobId, options?: MetadataOptions): Promise<BlobMetadata>;
  /** `data` are consecutive pieces. They are not kept after the promise settles. */
  putBlob(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void>;
  deleteBlob(id: BlobId, options?: SignalOptions): Promise<void>;
  listBlobs(prefix: string, options?: ListOptions): AsyncIterable<BlobMetadata>;
  /** Folders right below a prefix, which is empty or ends with `/`. Each name once, without `/`. */
  listFolders(prefix: string, options?: ListOptions): AsyncIterable<string>;
  /**
   * A URL for a plain GET of the blob, valid for this long. The blob need not exist. Throws
   * `UNSUPPORTED_URL` if the storage or the credentials cannot sign.
   */
  signedUrl(id: BlobId, lifetimeMs: number, options?: SignalOptions): Promise<string>;
  /** With {@link hasObjectLock}: whether object lock is switched on, if the service tells. */
  isLockable?(options?: SignalOptions): Promise<boolean | undefined>;
  /**
   * Extends a blob's retention. A longer retention of the same strength stays. Storages without
   * object lock throw `UNSUPPORTED_PUT`.
   */
  extendRetention(id: BlobId, retention: Retention, options?: SignalOptions): Promise<void>;
  /**
   * Removes remains of killed puts, of any program. `beforeNs` must be old enough that none still
   * runs. Absent if puts leave no remains; undefined if a wrapper has no such storage.
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

/** Throws `DAMAGED_BLOB` for a blob that is too long for its kind. */
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

/** Permanent refusals of a put or a deletion: permissions, space or a lock, for example. */
const REFUSALS = [
  ...['STORAGE_DENIED', 'STORAGE_FULL', 'STORAGE_READ_ONLY', 'STORAGE_CREDENTIALS'],
  ...['STORAGE_FAILED', 'BLOB_EXISTS', 'UNSUPPORTED_PUT', 'UNSUPPORTED_CHECKSUM'],
];

/**
 * Whether a storage refuses a put or a deletion permanently. Errors of an unreachable or busy
 * storage do not count: they can be retried.
 */
export const refusesWrites = (error: unknown): boolean =>
  REFUSALS.includes(codeOf(error) ?? '') && retryOf(error) === 'never';

/** Looks a blob up by name, because a listing may be old. Throws errors of the storage. */
export async function hasBlob(storage: BlobStorage, id: BlobId): Promise<boolean> {
  try {
    await storage.getMetadata(id);
    return true;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return false;
    throw error;
  }
}
