import { type RetryOptions, withRetry } from '../../base/index.ts';
import type { BlobId, BlobMetadata, BlobStorage, GetOptions, PutOptions } from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/** Kopia retries for about 10 minutes (internal/retry); ours: 8 tries within some 30 s, then the caller's turn. */
const DEFAULTS = { attemptsMax: 8, firstDelayMs: 100, delayMsMax: 10_000 };

/** Tries again what the storage's own error mapping calls passing. Puts are atomic and overwrite, so repeating is safe. */
export function withRetries(inner: BlobStorage, options: Partial<RetryOptions> = {}): BlobStorage {
  return new RetryingStorage(inner, { ...DEFAULTS, ...options });
}

class RetryingStorage extends ForwardingStorage {
  readonly #options: RetryOptions;

  constructor(inner: BlobStorage, options: RetryOptions) {
    super(inner);
    this.#options = options;
  }

  override getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    return this.#retry(options.signal, () => super.getBlob(id, options));
  }

  override getMetadata(
    id: BlobId,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<BlobMetadata> {
    return this.#retry(options.signal, () => super.getMetadata(id, options));
  }

  override putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<BlobMetadata> {
    return this.#retry(options.signal, () => super.putBlob(id, data, options));
  }

  override deleteBlob(
    id: BlobId,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<void> {
    return this.#retry(options.signal, () => super.deleteBlob(id, options));
  }

  /** A listing is read whole before it is passed on: a failure in the middle starts it again. */
  override async *listBlobs(
    prefix: string,
    options: { signal?: AbortSignal | undefined } = {},
  ): AsyncIterable<BlobMetadata> {
    yield* await this.#retry(options.signal, () =>
      Array.fromAsync(super.listBlobs(prefix, options)),
    );
  }

  #retry<T>(signal: AbortSignal | undefined, task: () => Promise<T>): Promise<T> {
    return withRetry(task, { ...this.#options, signal: signal ?? this.#options.signal });
  }
}
