import { CodedError, isCode, type RetryOptions, withRetry } from '../../base/index.ts';
import type { BlobId, BlobStorage, ListOptions, PutOptions, SignalOptions } from '../storage.ts';
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

  protected override around<T>(
    request: () => Promise<T>,
    { signal }: SignalOptions = {},
  ): Promise<T> {
    return withRetry(request, { ...this.#policy(), signal: signal ?? this.#options.signal });
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<void> {
    let isLost = false;
    try {
      const put = (): Promise<void> =>
        this.inner.putBlob(id, data, options).catch((error: unknown) => {
          isLost ||= !isCode(error, 'BLOB_EXISTS');
          throw error;
        });
      await this.around(put, options);
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

  /**
   * Reads a listing whole before it yields. A failure in the middle restarts the listing, if the
   * storage cannot retry a page alone. Failures that the storage has retried itself are not retried
   * here.
   */
  protected override async *listed<T>(
    list: (options: ListOptions) => AsyncIterable<T>,
    options: ListOptions = {},
  ): AsyncIterable<T> {
    const policy = this.#policy();
    let spent: CodedError | undefined;
    const read = async (): Promise<T[]> => {
      try {
        return await Array.fromAsync(list({ ...options, pageRetries: policy }));
      } catch (error) {
        if (!(error instanceof CodedError) || error.facts.tries === undefined) throw error;
        spent = error;
        return [];
      }
    };
    const listed = await this.around(read, options);
    if (spent !== undefined) throw spent;
    yield* listed;
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
