import {
  CodedError,
  createLimiter,
  isCode,
  type Limiter,
  type Nanoseconds,
  withRetry,
} from '../../base/index.ts';
import {
  type BlobId,
  blobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  invalidRange,
  type ListOptions,
  type PutOptions,
  type Retention,
  type SignalOptions,
  type TransferSettings,
} from '../storage.ts';
import { type ListedObject, type ListedPage, ListingCheck } from './listing.ts';
import { watched } from './transfer.ts';

/** Requests at once, each on a kept connection. Our choice: packs in flight have a lower limit. */
export const CONNECTIONS = 32;
/** The same as Kopia's. */
export const CONTENT_TYPE = 'application/x-kopia';
/** Kopia keeps settings of the bucket in this hidden blob (repo/blob/s3/s3_storage_config.go). */
export const STORAGE_CONFIG = '.storageconfig';
/** Default for a page of a listing. */
const PAGE_RETRIES = {
  budgetOf: () => ({ attemptsMax: 4, delayMsMax: 5_000 }),
  firstDelayMs: 100,
};

export interface RemoteSettings extends TransferSettings {
  /** Whether a repository lies at the location. Otherwise it has the files beside repositories. */
  readonly isRepository: boolean;
}

/** Describes a request for its error. */
export interface RequestInfo {
  readonly operation: 'get' | 'metadata' | 'put' | 'delete' | 'list' | 'extend' | 'sign';
  readonly id?: BlobId;
  /** The put must fail if the blob exists. */
  readonly isExclusive?: boolean;
}

export interface Transfer {
  /** Aborts with the caller, and when nothing moves. */
  readonly signal: AbortSignal;
  /** Call it with the number of moved bytes, or without a number at a step of the request. */
  readonly progress: (lengthBytes?: number) => void;
}

/** Request for a page of a listing. */
export interface PageRequest {
  /** With the location's prefix. */
  readonly prefix: string;
  readonly token: string | undefined;
  /** Keys that continue behind this character are listed as folders. */
  readonly delimiter?: string | undefined;
}

export type PartsOptions = Pick<PutOptions, 'doNotRecreate' | 'signal'>;

/** Options to put a blob of unknown length. */
export interface LongPut extends SignalOptions {
  /** The service must refuse the put if the blob exists. */
  readonly isExclusive: boolean;
  /** Runs a request, and retries temporary failures. */
  readonly retry: <T>(task: () => Promise<T>, signal: AbortSignal | undefined) => Promise<T>;
  /** Runs the last request, with or without the condition of an exclusive put. */
  readonly exclusively: (complete: (isExclusive: boolean) => Promise<void>) => Promise<void>;
}

/** Rules for the parts of a blob. */
export interface PartsRules {
  /** Length of each part but the last. */
  readonly partBytes: number;
  readonly partsMax: number;
  /** Parts in parallel; 1 if a service takes them one after the other. */
  readonly partsAtOnce: number;
}

/**
 * Common code of all cloud stores: bounded requests under a watchdog, errors of the contract,
 * listings in pages. A provider's folder makes the requests.
 */
export abstract class RemoteStorage implements BlobStorage {
  abstract readonly hasObjectLock: boolean;
  readonly displayName: string;
  /** The location's prefix. Every key starts with it. */
  readonly prefix: string;
  /** Whether the service promises to order listings by the keys' bytes. */
  protected readonly listsInOrder: boolean = true;
  /** Counts repairs of credentials or regions. */
  protected mends = 0;
  readonly #stallMs: number;
  readonly #requests: Limiter = createLimiter(CONNECTIONS);

  constructor(
    location: { readonly displayName: string; readonly prefix: string },
    { stallMs }: TransferSettings,
  ) {
    this.displayName = location.displayName;
    this.prefix = location.prefix;
    this.#stallMs = stallMs;
  }

  abstract getMetadata(id: BlobId, options?: SignalOptions): Promise<BlobMetadata>;
  abstract putBlob(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void>;
  abstract deleteBlob(id: BlobId, options?: SignalOptions): Promise<void>;
  abstract extendRetention(
    id: BlobId,
    retention: Retention,
    options?: SignalOptions,
  ): Promise<void>;

  /** Reads at least one byte. Throws `INVALID_RANGE` if it notices. */
  protected abstract read(id: BlobId, options: GetOptions, transfer: Transfer): Promise<Uint8Array>;
  /** Throws `BAD_LISTING` for an answer of another kind or another bucket. */
  protected abstract listPage(page: PageRequest, transfer: Transfer): Promise<ListedPage>;
  /** Maps a failure of the provider's library. */
  protected abstract describe(error: unknown, request: RequestInfo): CodedError;

  /** A blob with more bytes is put in parts. */
  abstract readonly partBytes: number;
  /** Puts a blob of unknown length. Readers see it only when it is complete. */
  abstract putInParts(id: BlobId, pieces: AsyncIterable<Uint8Array>, put: LongPut): Promise<void>;
  /** A URL for a plain GET of a blob, valid for this long. Throws `UNSUPPORTED_URL`. */
  abstract signedUrl(id: BlobId, lifetimeMs: number, options?: SignalOptions): Promise<string>;

  /**
   * Repairs the cause of a failure; true if the same request will now succeed. Called once for each
   * request. If several requests fail at once, the first repairs for all: `mendsBefore` is {@link
   * mends} at the start of this request.
   */
  protected recover?(error: unknown, mendsBefore: number): Promise<boolean>;

  async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const { offset = 0, lengthBytes } = options;
    // HTTP has no empty ranges.
    if (lengthBytes === 0) {
      const metadata = await this.getMetadata(id, options);
      if (offset > metadata.lengthBytes) throw invalidRange(id, offset, 0);
      return new Uint8Array(0);
    }
    try {
      return await this.request({ operation: 'get', id }, options.signal, (transfer) =>
        this.read(id, options, transfer),
      );
    } catch (error) {
      // Errors of the services do not name the range.
      if (isCode(error, 'INVALID_RANGE')) throw invalidRange(id, offset, lengthBytes ?? 0);
      throw error;
    }
  }

  async *listBlobs(prefix: string, options: ListOptions = {}): AsyncIterable<BlobMetadata> {
    for await (const { objects } of this.listPages(prefix, options)) {
      for (const { key, lengthBytes, modified } of objects) {
        const name = key.slice(this.prefix.length);
        // The prefix may hold other keys. Names that Kopia would not write are skipped.
        if (name === '' || name.includes('/') || name === STORAGE_CONFIG) continue;
        yield { id: blobId(name), lengthBytes, timestampNs: nanosecondsOf(modified) };
      }
    }
  }

  async *listFolders(prefix: string, options: ListOptions = {}): AsyncIterable<string> {
    const lengthBefore = this.prefix.length + prefix.length;
    const seen = new Set<string>();
    for await (const { folders } of this.listPages(prefix, { ...options, delimiter: '/' })) {
      for (const folder of folders) {
        // A folder may be on two pages.
        if (seen.has(folder)) continue;
        seen.add(folder);
        yield folder.slice(lengthBefore, -1);
      }
    }
  }

  /** Pages of keys, including the location's own prefix. With a delimiter, folders too. */
  async *listPages(
    prefix: string,
    options: ListOptions & { delimiter?: string } = {},
  ): AsyncIterable<{
    readonly objects: readonly ListedObject[];
    readonly folders: readonly string[];
  }> {
    const { signal, pageRetries = PAGE_RETRIES, beforeNextPage, delimiter } = options;
    const check = new ListingCheck({
      storage: this.displayName,
      prefix: this.prefix + prefix,
      nameAt: this.prefix.length,
      isOrdered: this.listsInOrder,
    });
    let token: string | undefined;
    do {
      if (token !== undefined) await beforeNextPage?.();
      const page = await withRetry(
        () =>
          this.request({ operation: 'list' }, signal, async (transfer) => {
            const asked = { prefix: this.prefix + prefix, token, delimiter };
            const { objects, folders = [], next } = await this.listPage(asked, transfer);
            return { folders, ...check.accept({ objects, folders, next }) };
          }),
        { ...pageRetries, signal },
      );
      yield page;
      token = page.next;
    } while (token !== undefined);
  }

  /** Runs one request. Throws only `CodedError`, or the caller's own abort. */
  protected request<T>(
    info: RequestInfo,
    signal: AbortSignal | undefined,
    task: (transfer: Transfer) => Promise<T>,
  ): Promise<T> {
    const what = `${info.operation}${info.id === undefined ? '' : ` of ${info.id}`} at ${this.displayName}`;
    const attempt = (): Promise<T> => watched(what, { signal, stallMs: this.#stallMs }, task);
    const fail = (error: unknown): never => {
      if (signal?.aborted === true || error instanceof CodedError) throw error;
      throw this.describe(error, info);
    };
    return this.#requests.run(async () => {
      const mendsBefore = this.mends;
      try {
        return await attempt();
      } catch (error) {
        const isMended =
          !(error instanceof CodedError) && (await this.recover?.(error, mendsBefore)) === true;
        return isMended ? await attempt().catch(fail) : fail(error);
      }
    });
  }

  close(): Promise<void> {
    return this.#requests.onIdle();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

export const nanosecondsOf = (date: Date | undefined): Nanoseconds =>
  BigInt(date?.getTime() ?? 0) * 1_000_000n;

export function tooLong(id: BlobId, storage: string): CodedError {
  const text = `blob ${id} is longer than what ${storage} takes`;
  return new CodedError('BLOB_TOO_LONG', text, { facts: { blobId: id } });
}
