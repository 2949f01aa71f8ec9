import type { ContentId } from './content-id.ts';

/** Where a content is, as one index says. */
export interface IndexEntry {
  readonly contentId: ContentId;
  readonly packBlobId: string;
  readonly packOffset: number;
  /** Bytes in the pack, encryption overhead included. */
  readonly packedLength: number;
  /** Bytes of the plaintext, before compression. */
  readonly originalLength: number;
  /** Unix seconds of writing, deletion or undeletion; the greatest wins. */
  readonly timestampSeconds: number;
  readonly deleted: boolean;
  readonly formatVersion: number;
  /** 0: stored raw. */
  readonly compressionHeaderId: number;
  readonly encryptionKeyId: number;
}

/**
 * Positive when `a` wins over `b`: later, else not deleted, else the greater pack (Kopia:
 * repo/content/index/merged.go).
 */
export function comparePrecedence(a: IndexEntry, b: IndexEntry): number {
  if (a.timestampSeconds !== b.timestampSeconds) return a.timestampSeconds - b.timestampSeconds;
  if (a.deleted !== b.deleted) return a.deleted ? -1 : 1;
  return a.packBlobId < b.packBlobId ? -1 : a.packBlobId > b.packBlobId ? 1 : 0;
}

/** Deleted entries up to the watermark count as gone. */
export const isHidden = (entry: IndexEntry, watermarkSeconds: number): boolean =>
  entry.deleted && entry.timestampSeconds <= watermarkSeconds;
