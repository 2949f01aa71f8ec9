import type { BlobMetadata, SignalOptions } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';

/** What a listing becomes: an empty one, an older one, one that lacks something. */
export type Lie = (prefix: string, blobs: readonly BlobMetadata[]) => readonly BlobMetadata[];

/**
 * A storage whose listings may be wrong: what a proxy, a stale replica or a damaged bucket index
 * answers.
 */
export class LyingStorage extends ForwardingStorage {
  /** Undefined: the truth. */
  lie: Lie | undefined;

  override async *listBlobs(prefix: string, options?: SignalOptions): AsyncIterable<BlobMetadata> {
    const blobs = await Array.fromAsync(super.listBlobs(prefix, options));
    yield* this.lie ? this.lie(prefix, blobs) : blobs;
  }
}
