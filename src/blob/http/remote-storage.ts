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

/**
 * Requests at once, each on a connection that is kept. Our choice: packs in flight are bounded
 * before that.
 */
export const CONNECTIONS = 32;
/** As Kopia marks its blobs. */
export const CONTENT_TYPE = 'application/x-kopia';
/** Kopia keeps settings of the bucket in this hidden blob (repo/blob/s3/s3_storage_config.go). */
export const STORAGE_CONFIG = '.storageconfig';
/** For a page of a listing, where the caller names no other. */
const PAGE_RETRIES = {
  budgetOf: () => ({ attemptsMax: 4, delayMsMax: 5_000 }),
  firstDelayMs: 100,
};

export interface RemoteSettings extends TransferSettings {
  /**
   * Whether a repository lies at the location. Otherwise it holds what lies beside repositories.
   */
  readonly isRepository: boolean;
}

/** What a request is, for its error. */
export interface RequestInfo {
  readonly operation: 'get' | 'metadata' | 'put' | 'delete' | 'list' | 'extend' | 'sign';
  readonly id?: BlobId;
  /** A put that is to be refused when the blob is there. */
  readonly isExclusive?: boolean;
}

export interface Transfer {
  /** Aborts when the caller does, and when nothing moves. */
  readonly signal: AbortSignal;
  /**
   * To be called whenever bytes move, with their number, and without one at a step of the request.
   */
  readonly progress: (lengthBytes?: number) => void;
}

/** What is asked for of a page of a listing. */
export interface PageRequest {
  /** With the location's prefix. */
  readonly prefix: string;
  readonly token: string | undefined;
  /** What lies deeper than this character is not listed, but summed up as a folder. */
  readonly delimiter?: string | undefined;
}

export type PartsOptions = Pick<PutOptions, 'doNotRecreate' | 'signal'>;

/** How a blob of unknown length is put. */
export interface LongPut extends SignalOptions {
  /** The put is to be refused by the service when the blob is there. */
  readonly isExclusive: boolean;
  /** Runs a request, and again when its failure may pass. */
  readonly retry: <T>(task: () => Promise<T>, signal: AbortSignal | undefined) => Promise<T>;
  /** Runs the last request, with or without the condition of an exclusive put. */
  readonly exclusively: (complete: (isExclusive: boolean) => Promise<void>) => Promise<void>;
}

/** What the parts of a blob must be like. */
export interface PartsRules {
  /** Bytes of each part but the last one. */
  readonly partBytes: number;
  readonly partsMax: number;
  /** Parts at once; 1 where a service takes them one after the other. */
  readonly partsAtOnce: number;
}

/**
 * What the stores of all cloud providers have in common: requests are bounded in number and under a
 * watchdog, failures get one meaning, listings come in pages. A provider's folder says how each
 * request is made.
 */
export abstract class RemoteStorage implements BlobStorage {
  abstract readonly hasObjectLock: boolean;
  readonly displayName: string;
  /** The location's, which every key begins with. */
  readonly prefix: string;
  /** Whether the service promises its listings in the order of the keys' bytes. */
  protected readonly listsInOrder: boolean = true;
  /** How often something was mended that requests depend on. */
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

  /** Some bytes at least are wanted. Throws `INVALID_RANGE` where it notices. */
  protected abstract read(id: BlobId, options: GetOptions, transfer: Transfer): Promise<Uint8Array>;
  /** Throws `BAD_LISTING` when the answer is of another kind, or of another bucket. */
  protected abstract listPage(page: PageRequest, transfer: Transfer): Promise<ListedPage>;
  /** What a failure of the provider's library means. */
  protected abstract describe(error: unknown, request: RequestInfo): CodedError;

  /** A blob of more bytes is put in parts. */
  abstract readonly partBytes: number;
  /** Puts a blob whose length is not known. Nobody sees it before it is whole. */
  abstract putInParts(id: BlobId, pieces: AsyncIterable<Uint8Array>, put: LongPut): Promise<void>;
  /**
   * A URL by which anybody may get a blob with a plain GET until then. Throws `UNSUPPORTED_URL`.
   */
  abstract signedUrl(id: BlobId, lifetimeMs: number, options?: SignalOptions): Promise<string>;

  /**
   * Whether something was mended by which the same request will succeed; asked once for each
   * request. Of several that fail at once the first mends it for all: `mendsBefore` is what
   * {@link mends} was when this one began.
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
      // Errors of the services do not say which range it was.
      if (isCode(error, 'INVALID_RANGE')) throw invalidRange(id, offset, lengthBytes ?? 0);
      throw error;
    }
  }

  async *listBlobs(prefix: string, options: ListOptions = {}): AsyncIterable<BlobMetadata> {
    for await (const { objects } of this.listPages(prefix, options)) {
      for (const { key, lengthBytes, modified } of objects) {
        const name = key.slice(this.prefix.length);
        // Other things may live below the prefix: what Kopia would not write is not ours.
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
        // A folder that begins one page may have ended the one before.
        if (seen.has(folder)) continue;
        seen.add(folder);
        yield folder.slice(lengthBefore, -1);
      }
    }
  }

  /**
   * Every key with a prefix, page by page, with the location's own prefix; with a delimiter,
   * folders too.
   */
  async *listPages(
    prefix: string,
    { signal, pageRetries = PAGE_RETRIES, delimiter }: ListOptions & { delimiter?: string } = {},
  ): AsyncIterable<{
    readonly objects: readonly ListedObject[];
    readonly folders: readonly string[];
  }> {
    const check = new ListingCheck({
      storage: this.displayName,
      prefix: this.prefix + prefix,
      nameAt: this.prefix.length,
      isOrdered: this.listsInOrder,
    });
    let token: string | undefined;
    do {
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

  /** Runs one request; every error that leaves it is a `CodedError`, or the caller's own abort. */
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
