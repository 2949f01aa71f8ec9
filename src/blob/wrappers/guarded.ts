import type {
  BlobId,
  BlobStorage,
  PutOptions,
  Retention,
  SignalOptions,
  UnfinishedPuts,
  UnfinishedPutsOptions,
} from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/** Decides whether a change of the storage is still allowed (Kopia: internal/blob/beforeop). */
export interface WriteGuard {
  /** Called before each put, deletion and lock. A rejection fails the request. */
  beforeWrite(): Promise<void>;
  /** Returns the current options for the put. */
  optionsOf(id: BlobId, options: PutOptions): PutOptions;
}

export function guarded(inner: BlobStorage, guard: WriteGuard): BlobStorage {
  return new GuardedStorage(inner, guard);
}

class GuardedStorage extends ForwardingStorage {
  readonly #guard: WriteGuard;

  constructor(inner: BlobStorage, guard: WriteGuard) {
    super(inner);
    this.#guard = guard;
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<void> {
    await this.#guard.beforeWrite();
    await super.putBlob(id, data, this.#guard.optionsOf(id, options));
  }

  override async deleteBlob(id: BlobId, options?: SignalOptions): Promise<void> {
    await this.#guard.beforeWrite();
    await super.deleteBlob(id, options);
  }

  override async extendRetention(
    id: BlobId,
    retention: Retention,
    options?: SignalOptions,
  ): Promise<void> {
    await this.#guard.beforeWrite();
    await super.extendRetention(id, retention, options);
  }

  override async removeUnfinishedPuts(
    options: UnfinishedPutsOptions,
  ): Promise<UnfinishedPuts | undefined> {
    await this.#guard.beforeWrite();
    return super.removeUnfinishedPuts(options);
  }
}
