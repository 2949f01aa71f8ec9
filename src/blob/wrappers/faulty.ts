import type {
  BlobId,
  BlobMetadata,
  BlobStorage,
  GetOptions,
  PutOptions,
  SignalOptions,
} from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

export type StorageOperation = 'get' | 'metadata' | 'put' | 'delete' | 'list';

/**
 * Called before each request, and again after a put or delete took effect (`after`). Throw to
 * inject a fault; await to be slow.
 */
export type FaultPlan = (request: {
  operation: StorageOperation;
  id: string;
  when: 'before' | 'after';
}) => void | Promise<void>;

/** For tests: faults by plan, also after the request took effect. */
export function faulty(inner: BlobStorage, plan: FaultPlan): BlobStorage {
  return new FaultyStorage(inner, plan);
}

class FaultyStorage extends ForwardingStorage {
  readonly #plan: FaultPlan;

  constructor(inner: BlobStorage, plan: FaultPlan) {
    super(inner);
    this.#plan = plan;
  }

  override getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array> {
    return this.#around('get', id, () => super.getBlob(id, options));
  }

  override getMetadata(id: BlobId, options?: SignalOptions): Promise<BlobMetadata> {
    return this.#around('metadata', id, () => super.getMetadata(id, options));
  }

  override putBlob(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void> {
    return this.#around('put', id, () => super.putBlob(id, data, options));
  }

  override deleteBlob(id: BlobId): Promise<void> {
    return this.#around('delete', id, () => super.deleteBlob(id));
  }

  override async *listBlobs(prefix: string): AsyncIterable<BlobMetadata> {
    await this.#plan({ operation: 'list', id: prefix, when: 'before' });
    yield* super.listBlobs(prefix);
  }

  async #around<T>(operation: StorageOperation, id: string, task: () => Promise<T>): Promise<T> {
    await this.#plan({ operation, id, when: 'before' });
    const result = await task();
    await this.#plan({ operation, id, when: 'after' });
    return result;
  }
}
