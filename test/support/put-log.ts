import type { BlobId, BlobStorage, PutOptions, SignalOptions } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';

/** Passes everything on, and remembers which blobs were put. */
export class PutLog extends ForwardingStorage {
  /** Of all puts that took effect, in order. */
  readonly puts: string[] = [];
  /** Before each deletion. */
  deletes: () => void = () => undefined;

  constructor(inner: BlobStorage, puts: string[] = []) {
    super(inner);
    this.puts = puts;
  }

  /** Blobs that were put more than once, whether they were deleted meanwhile or not. */
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
