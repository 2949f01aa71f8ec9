import type { ContentId } from './content-id.ts';

/** The place of a content, according to one index. */
export interface IndexEntry {
  readonly contentId: ContentId;
  readonly packBlobId: string;
  readonly packOffset: number;
  /** Bytes in the pack, encryption overhead included. */
  readonly packedLength: number;
  /** Bytes of the plaintext, before compression. */
  readonly originalLength: number;
  /** Unix seconds of the write, deletion or undeletion. The highest wins. */
  readonly timestampSeconds: number;
  readonly deleted: boolean;
  readonly formatVersion: number;
  /** 0 means uncompressed. */
  readonly compressionHeaderId: number;
  readonly encryptionKeyId: number;
}

/**
 * Positive if `a` wins over `b`: the later entry, then the undeleted entry, then the greater pack
 * name. Kopia: repo/content/index/merged.go.
 */
export function comparePrecedence(a: IndexEntry, b: IndexEntry): number {
  if (a.timestampSeconds !== b.timestampSeconds) return a.timestampSeconds - b.timestampSeconds;
  if (a.deleted !== b.deleted) return a.deleted ? -1 : 1;
  return a.packBlobId < b.packBlobId ? -1 : a.packBlobId > b.packBlobId ? 1 : 0;
}

/** Deleted entries up to the watermark count as nonexistent. */
export const isHidden = (entry: IndexEntry, watermarkSeconds: number): boolean =>
  entry.deleted && entry.timestampSeconds <= watermarkSeconds;
