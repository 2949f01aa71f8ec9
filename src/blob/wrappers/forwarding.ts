import type {
  BlobId,
  BlobMetadata,
  BlobStorage,
  GetOptions,
  ListOptions,
  MetadataOptions,
  PutOptions,
  Retention,
  SignalOptions,
  UnfinishedPuts,
  UnfinishedPutsOptions,
} from '../storage.ts';

/** Optional members too: a new method of the contract must be forwarded here. */
type Forwarded = Required<BlobStorage>;

/**
 * Passes every call on. Wrappers override some methods, or {@link around} and {@link listed}, which
 * run every request.
 */
export abstract class ForwardingStorage implements Forwarded {
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

  get adaptations(): readonly string[] {
    return this.inner.adaptations ?? [];
  }

  get isWriteOnce(): boolean {
    return this.inner.isWriteOnce === true;
  }

  /** Runs every request but listings. */
  protected around<T>(
    ...[request]: [request: () => Promise<T>, options?: SignalOptions]
  ): Promise<T> {
    return request();
  }

  /** Runs every listing. */
  protected listed<T>(
    list: (options: ListOptions | undefined) => AsyncIterable<T>,
    options?: ListOptions,
  ): AsyncIterable<T> {
    return list(options);
  }

  getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array> {
    return this.around(() => this.inner.getBlob(id, options), options);
  }

  getMetadata(id: BlobId, options?: MetadataOptions): Promise<BlobMetadata> {
    return this.around(() => this.inner.getMetadata(id, options), options);
  }

  putBlob(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void> {
    return this.around(() => this.inner.putBlob(id, data, options), options);
  }

  deleteBlob(id: BlobId, options?: SignalOptions): Promise<void> {
    return this.around(() => this.inner.deleteBlob(id, options), options);
  }

  listBlobs(prefix: string, options?: ListOptions): AsyncIterable<BlobMetadata> {
    return this.listed((settings) => this.inner.listBlobs(prefix, settings), options);
  }

  listFolders(prefix: string, options?: ListOptions): AsyncIterable<string> {
    return this.listed((settings) => this.inner.listFolders(prefix, settings), options);
  }

  signedUrl(id: BlobId, lifetimeMs: number, options?: SignalOptions): Promise<string> {
    return this.around(() => this.inner.signedUrl(id, lifetimeMs, options), options);
  }

  isLockable(options?: SignalOptions): Promise<boolean | undefined> {
    return this.around(async () => this.inner.isLockable?.(options), options);
  }

  extendRetention(id: BlobId, retention: Retention, options?: SignalOptions): Promise<void> {
    return this.around(() => this.inner.extendRetention(id, retention, options), options);
  }

  removeUnfinishedPuts(options: UnfinishedPutsOptions): Promise<UnfinishedPuts | undefined> {
    return this.around(async () => this.inner.removeUnfinishedPuts?.(options), options);
  }

  close(): Promise<void> {
    return this.inner.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
