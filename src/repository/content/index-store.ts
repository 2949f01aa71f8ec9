import type { CodedError } from '../../base/index.ts';
import type { BlobId, BlobMetadata } from '../../blob/index.ts';
import type { SessionId } from './session.ts';

export interface ActiveIndexSet {
  readonly blobs: readonly BlobMetadata[];
  readonly watermarkSeconds: number;
  /** Replaced index blobs that are not deleted yet. They add nothing to the active ones. */
  readonly superseded: readonly BlobMetadata[];
  /** Why entries are missing for certain: `DAMAGED_BLOB`. */
  readonly lost: readonly CodedError[];
}

export interface SignalOptions {
  readonly signal?: AbortSignal | undefined;
}

/** Where index blobs live: the epoch manager of formats 2 and 3, or the legacy one of format 1. */
export interface IndexStore {
  /** The blobs that together hold every entry. Always read anew. */
  listActive(options?: SignalOptions): Promise<ActiveIndexSet>;
  /**
   * Makes bodies durable; a failure may leave some of them, which others may have read. Returns
   * their ids.
   */
  write(bodies: readonly Uint8Array[], session: SessionId): Promise<BlobId[]>;
}
