import type { BlobId, BlobStorage, PutOptions, SignalOptions } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';

/** Forwards all calls, and records the put blobs. */
export class PutLog extends ForwardingStorage {
  /** All puts that took effect, in order. */
  readonly puts: string[] = [];
  /** Called before each deletion. */
  deletes: () => void = () => undefined;

  constructor(inner: BlobStorage, puts: string[] = []) {
    super(inner);
    this.puts = puts;
  }

  /** Blobs that were put more than once, even if they were deleted meanwhile. */
  get putTwice(): string[] {
    return [...new Set(this.puts.filter((id, at) => this.puts.indexOf(id) !== at))];
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options?: PutOptions,
  ): Promise<void> {
    await super.putBlob(id, data, options);
    this.puts.push(id);
  }

  override async deleteBlob(id: BlobId, options?: SignalOptions): Promise<void> {
    this.deletes();
    await super.deleteBlob(id, options);
  }
}
