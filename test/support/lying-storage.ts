import type { BlobMetadata, SignalOptions } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';

/** Changes a listing: empty, older, or incomplete. */
export type Lie = (prefix: string, blobs: readonly BlobMetadata[]) => readonly BlobMetadata[];

/** A storage with wrong listings, as from a proxy, a stale replica or a damaged index. */
export class LyingStorage extends ForwardingStorage {
  /** Undefined: the truth. */
  lie: Lie | undefined;

  override async *listBlobs(prefix: string, options?: SignalOptions): AsyncIterable<BlobMetadata> {
    const blobs = await Array.fromAsync(super.listBlobs(prefix, options));
    yield* this.lie ? this.lie(prefix, blobs) : blobs;
  }
}
