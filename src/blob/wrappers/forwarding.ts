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

/** Passes every call on. Wrappers extend it and override some methods. */
export abstract class ForwardingStorage implements BlobStorage {
  protected readonly inner: BlobStorage;

  constructor(inner: BlobStorage) {
    this.inner = inner;
  }

  get displayName(): string {
    return this.inner.displayName;
  }

  get hasObjectLock(): boolean {
    return this.inner.hasObjectLock;
  }

  get isWriteOnce(): boolean {
    return this.inner.isWriteOnce === true;
  }

  getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array> {
    return this.inner.getBlob(id, options);
  }

  getMetadata(id: BlobId, options?: SignalOptions): Promise<BlobMetadata> {
    return this.inner.getMetadata(id, options);
  }

  putBlob(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void> {
    return this.inner.putBlob(id, data, options);
  }

  deleteBlob(id: BlobId, options?: SignalOptions): Promise<void> {
    return this.inner.deleteBlob(id, options);
  }

  listBlobs(prefix: string, options?: ListOptions): AsyncIterable<BlobMetadata> {
    return this.inner.listBlobs(prefix, options);
  }

  listFolders(prefix: string, options?: ListOptions): AsyncIterable<string> {
    return this.inner.listFolders(prefix, options);
  }

  signedUrl(id: BlobId, lifetimeMs: number, options?: SignalOptions): Promise<string> {
    return this.inner.signedUrl(id, lifetimeMs, options);
  }

  async isLockable(options?: SignalOptions): Promise<boolean | undefined> {
    return this.inner.isLockable?.(options);
  }

  extendRetention(id: BlobId, retention: Retention, options?: SignalOptions): Promise<void> {
    return this.inner.extendRetention(id, retention, options);
  }

  async removeUnfinishedPuts(options: UnfinishedPutsOptions): Promise<UnfinishedPuts | undefined> {
    return this.inner.removeUnfinishedPuts?.(options);
  }

  close(): Promise<void> {
    return this.inner.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
