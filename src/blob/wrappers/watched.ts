import type {
  BlobId,
  BlobMetadata,
  BlobStorage,
  GetOptions,
  PutOptions,
  Retention,
  SignalOptions,
  UnfinishedPuts,
  UnfinishedPutsOptions,
} from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/** Whether a storage is active: separates a slow storage from a hanging storage. */
export interface StorageActivity {
  /** Requests under way, their retries included. */
  readonly pending: number;
  /** Grows with every answer. */
  readonly answers: number;
}

export type WatchedStorage = BlobStorage & { readonly activity: StorageActivity };

export function watched(inner: BlobStorage): WatchedStorage {
  return new ActiveStorage(inner);
}

class ActiveStorage extends ForwardingStorage implements WatchedStorage {
  readonly activity = { pending: 0, answers: 0 };

  override getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array> {
    return this.#watch(super.getBlob(id, options));
  }

  override getMetadata(id: BlobId, options?: SignalOptions): Promise<BlobMetadata> {
    return this.#watch(super.getMetadata(id, options));
  }

  override putBlob(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void> {
    return this.#watch(super.putBlob(id, data, options));
  }

  override deleteBlob(id: BlobId, options?: SignalOptions): Promise<void> {
    return this.#watch(super.deleteBlob(id, options));
  }

  override async *listBlobs(prefix: string, options?: SignalOptions): AsyncIterable<BlobMetadata> {
    const iterator = super.listBlobs(prefix, options)[Symbol.asyncIterator]();
    try {
      for (;;) {
        const step = await this.#watch(iterator.next());
        if (step.done === true) return;
        yield step.value;
      }
    } finally {
      await iterator.return?.();
    }
  }

  override extendRetention(
    id: BlobId,
    retention: Retention,
    options?: SignalOptions,
  ): Promise<void> {
    return this.#watch(super.extendRetention(id, retention, options));
  }

  override removeUnfinishedPuts(
    options: UnfinishedPutsOptions,
  ): Promise<UnfinishedPuts | undefined> {
    return this.#watch(super.removeUnfinishedPuts(options));
  }

  async #watch<T>(request: Promise<T>): Promise<T> {
    this.activity.pending++;
    try {
      return await request;
    } finally {
      this.activity.pending--;
      this.activity.answers++;
    }
  }
}
