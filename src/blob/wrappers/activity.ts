import type { BlobStorage, ListOptions } from '../storage.ts';
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

  protected override async around<T>(request: () => Promise<T>): Promise<T> {
    this.activity.pending++;
    try {
      return await request();
    } finally {
      this.activity.pending--;
      this.activity.answers++;
    }
  }

  protected override async *listed<T>(
    list: (options?: ListOptions) => AsyncIterable<T>,
    options?: ListOptions,
  ): AsyncIterable<T> {
    const iterator = list(options)[Symbol.asyncIterator]();
    try {
      for (;;) {
        const step = await this.around(() => iterator.next());
        if (step.done === true) return;
        yield step.value;
      }
    } finally {
      await iterator.return?.();
    }
  }
}
