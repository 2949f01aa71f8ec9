import type { CodedError } from '../../base/index.ts';
import type { BlobId, BlobMetadata } from '../../blob/index.ts';
import type { SessionId } from './session.ts';

export interface ActiveIndexSet {
  readonly blobs: readonly BlobMetadata[];
  readonly watermarkSeconds: number;
  /** Replaced index blobs that are not deleted yet. They add nothing to the active blobs. */
  readonly superseded: readonly BlobMetadata[];
  /** Known losses of entries: `DAMAGED_BLOB` each. */
  readonly lost: readonly CodedError[];
}

export interface SignalOptions {
  readonly signal?: AbortSignal | undefined;
}

/** The index blobs: managed by epochs in formats 2 and 3, by the legacy store in format 1. */
export interface IndexStore {
  /** The blobs that together hold every entry. Always lists the storage. */
  listActive(options?: SignalOptions): Promise<ActiveIndexSet>;
  /** Makes bodies durable and returns their IDs. A failure may leave blobs that others read. */
  write(bodies: readonly Uint8Array[], session: SessionId): Promise<BlobId[]>;
}
