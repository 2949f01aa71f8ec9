import { CodedError, isCode, type RetryOptions, withRetry } from '../../base/index.ts';
import type {
  BlobId,
  BlobMetadata,
  BlobStorage,
  GetOptions,
  ListOptions,
  PutOptions,
  Retention,
  SignalOptions,
  UnfinishedPuts,
  UnfinishedPutsOptions,
} from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/**
 * Budgets by kind of failure. Kopia retries everything for about 10 minutes (internal/retry). A
 * busy service gets some 5 minutes. An unreachable service gets half a minute: enough for a
 * restart, and a wrong name is reported soon. Other failures get some 30 s; then the caller
 * decides.
 */
const BUDGETS = {
  busy: { attemptsMax: 16, delayMsMax: 30_000 },
  unreachable: { attemptsMax: 8, delayMsMax: 8_000 },
  other: { attemptsMax: 8, delayMsMax: 10_000 },
} as const;
const FIRST_DELAY_MS = 100;

export interface StorageRetryOptions {
  /** For every kind of failure; default: by kind. */
  attemptsMax?: number;
  firstDelayMs?: number;
  delayMsMax?: number;
  signal?: AbortSignal | undefined;
  onRetry?: (error: unknown, attempt: number) => void;
}

/** Retries temporary failures. Puts are atomic and overwrite, so a repeat is safe. */
export function withRetries(inner: BlobStorage, options: StorageRetryOptions = {}): BlobStorage {
  return new RetryingStorage(inner, options);
}

class RetryingStorage extends ForwardingStorage {
  readonly #options: StorageRetryOptions;

  constructor(inner: BlobStorage, options: StorageRetryOptions) {
    super(inner);
    this.#options = options;
  }

  override getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    return this.#retry(options.signal, () => super.getBlob(id, options));
  }

  override getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.#retry(options.signal, () => super.getMetadata(id, options));
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<void> {
    let isLost = false;
    try {
      await this.#retry(options.signal, () =>
        super.putBlob(id, data, options).catch((error: unknown) => {
          isLost ||= !isCode(error, 'BLOB_EXISTS');
          throw error;
        }),
      );
    } catch (error) {
      // The answer to an earlier try may be lost, and its blob may exist. Compare the bytes.
      const isOurs = isLost && isCode(error, 'BLOB_EXISTS') && (await this.#holds(id, data));
      if (!isOurs) throw error;
    }
  }

  async #holds(id: BlobId, data: readonly Uint8Array[]): Promise<boolean> {
    const there = await this.getBlob(id);
    return Buffer.concat(data).equals(there);
  }

  override deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    return this.#retry(options.signal, () => super.deleteBlob(id, options));
  }

  override signedUrl(id: BlobId, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    return this.#retry(options.signal, () => super.signedUrl(id, lifetimeMs, options));
  }

  override extendRetention(
    id: BlobId,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    return this.#retry(options.signal, () => super.extendRetention(id, retention, options));
  }

  override removeUnfinishedPuts(
    options: UnfinishedPutsOptions,
  ): Promise<UnfinishedPuts | undefined> {
    return this.#retry(options.signal, () => super.removeUnfinishedPuts(options));
  }

  override listBlobs(prefix: string, options: ListOptions = {}): AsyncIterable<BlobMetadata> {
    return this.#listWhole(options, (settings) => super.listBlobs(prefix, settings));
  }

  override listFolders(prefix: string, options: ListOptions = {}): AsyncIterable<string> {
    return this.#listWhole(options, (settings) => super.listFolders(prefix, settings));
  }

  /**
   * Reads a listing whole before it yields. A failure in the middle restarts the listing, if the
   * storage cannot retry a page alone. Failures that the storage has retried itself are not retried
   * here.
   */
  async *#listWhole<T>(
    options: ListOptions,
    list: (options: ListOptions) => AsyncIterable<T>,
  ): AsyncIterable<T> {
    const { signal } = options;
    const policy = this.#policy();
    let spent: CodedError | undefined;
    const listed = await this.#retry(signal, async () => {
      try {
        return await Array.fromAsync(list({ ...options, pageRetries: policy }));
      } catch (error) {
        if (!(error instanceof CodedError) || error.facts.tries === undefined) throw error;
        spent = error;
        return [];
      }
    });
    if (spent !== undefined) throw spent;
    yield* listed;
  }

  #retry<T>(signal: AbortSignal | undefined, task: () => Promise<T>): Promise<T> {
    return withRetry(task, { ...this.#policy(), signal: signal ?? this.#options.signal });
  }

  #policy(): Omit<RetryOptions, 'signal'> {
    return retryPolicy(this.#options);
  }
}

/** Retry budgets of requests to a storage. */
export function retryPolicy(options: StorageRetryOptions): Omit<RetryOptions, 'signal'> {
  const { firstDelayMs = FIRST_DELAY_MS, onRetry } = options;
  return {
    budgetOf: (error) => ({ ...BUDGETS[kindOf(error)], ...options }),
    firstDelayMs,
    ...(onRetry && { onRetry }),
  };
}

function kindOf(error: unknown): keyof typeof BUDGETS {
  if (isCode(error, 'STORAGE_THROTTLED')) return 'busy';
  return isCode(error, 'STORAGE_UNREACHABLE') ? 'unreachable' : 'other';
}
