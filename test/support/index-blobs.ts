import type { BlobMetadata, BlobStorage } from '../../src/blob/index.ts';
import { contentIdOf } from '../../src/repository/index/content-id.ts';
import { type BlobCodec, sealBlob } from '../../src/repository/content/sealed-blob.ts';
import type { IndexEntry } from '../../src/repository/index/entry.ts';
import { encodeIndex, sortEntries } from '../../src/repository/index/index-writer.ts';

/** Made-up entries. Entries with the same number are of the same content. */
export function makeEntries(count: number, change: Partial<IndexEntry> = {}): IndexEntry[] {
  return Array.from({ length: count }, (_, i) => {
    const hash = Buffer.alloc(16);
    hash.writeUInt32BE((i * 2654435761) >>> 0);
    hash.writeUInt32BE(i, 12);
    return {
      contentId: contentIdOf('', hash),
      packBlobId: `p${'0'.repeat(31)}${i % 7}-s0123456789abcdef147`,
      packOffset: i,
      packedLength: 100,
      originalLength: 72,
      timestampSeconds: 1_700_000_000,
      deleted: false,
      formatVersion: 3,
      compressionHeaderId: 0,
      encryptionKeyId: 0,
      ...change,
    };
  });
}

/** Puts an index blob of epoch 0 as a writer does. */
export async function putIndex(
  storage: BlobStorage,
  codec: BlobCodec,
  entries: IndexEntry[],
  { prefix = 'xn0_', suffix = '-s0123456789abcdef147-c1' } = {},
): Promise<BlobMetadata> {
  const body = encodeIndex(2, sortEntries(entries));
  const { id, bytes } = sealBlob(codec, prefix, suffix, body);
  await storage.putBlob(id, [bytes]);
  return storage.getMetadata(id);
}
