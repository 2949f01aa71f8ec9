import { totalLength } from '../../base/index.ts';
import {
  type BlobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  type ListOptions,
  type PutOptions,
  type SignalOptions,
} from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/** Counts the requests of a storage since it was wrapped. */
export interface StorageCounters {
  gets: number;
  puts: number;
  lists: number;
  deletes: number;
  errors: number;
  bytesDown: number;
  bytesUp: number;
}

export interface MeteredStorage extends BlobStorage {
  readonly counters: Readonly<StorageCounters>;
}

export function metered(inner: BlobStorage): MeteredStorage {
  return new CountingStorage(inner);
}

class CountingStorage extends ForwardingStorage implements MeteredStorage {
  readonly counters: StorageCounters = {
    gets: 0,
    puts: 0,
    lists: 0,
    deletes: 0,
    errors: 0,
    bytesDown: 0,
    bytesUp: 0,
  };

  override async getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array> {
    this.counters.gets++;
    const bytes = await this.#counted(super.getBlob(id, options));
    this.counters.bytesDown += bytes.length;
    return bytes;
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options?: PutOptions,
  ): Promise<void> {
    this.counters.puts++;
    await this.#counted(super.putBlob(id, data, options));
    this.counters.bytesUp += totalLength(data);
  }

  override deleteBlob(id: BlobId, options?: SignalOptions): Promise<void> {
    this.counters.deletes++;
    return this.#counted(super.deleteBlob(id, options));
  }

  override listBlobs(prefix: string, options?: ListOptions): AsyncIterable<BlobMetadata> {
    this.counters.lists++;
    return super.listBlobs(prefix, options);
  }

  async #counted<T>(request: Promise<T>): Promise<T> {
    try {
      return await request;
    } catch (error) {
      this.counters.errors++;
      throw error;
    }
  }
}
