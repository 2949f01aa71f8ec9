import { isCode } from '../../base/index.ts';
import type { BlobMetadata, BlobStorage } from '../../blob/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { memorySource } from '../index/byte-source.ts';
import { IndexBody } from '../index/index-body.ts';
import { decodePostamble } from './pack.ts';
import type { BlobCodec } from './sealed-blob.ts';

/** Holds the whole local index of most packs, 40 bytes a content. Our choice. */
const TAIL_BYTES = 64 << 10;

/**
 * The index at the end of a pack, in case index blobs are lost. Kopia reads it too. A pack may also
 * name contents of other packs that were deleted while it was filled. Returns undefined if the end
 * of the pack is unreadable. Throws `BLOB_NOT_FOUND`.
 */
export async function loadLocalIndex(
  storage: BlobStorage,
  codec: BlobCodec,
  pack: BlobMetadata,
): Promise<IndexEntry[] | undefined> {
  // Bypasses the cache, because such a pack is read once. Reads twice in case the first bytes were
  // damaged in transit.
  return (await read(storage, codec, pack)) ?? (await read(storage, codec, pack));
}

async function read(
  storage: BlobStorage,
  codec: BlobCodec,
  { id, lengthBytes }: BlobMetadata,
): Promise<IndexEntry[] | undefined> {
  const range = (offset: number, length: number): Promise<Uint8Array> =>
    storage.getBlob(id, { offset, lengthBytes: length, fresh: true });
  try {
    const tailAt = Math.max(0, lengthBytes - TAIL_BYTES);
    const tail = await range(tailAt, lengthBytes - tailAt);
    const postamble = decodePostamble(tail);
    if (!postamble) return undefined;
    const { iv, offset, length } = postamble;
    const sealed =
      offset >= tailAt
        ? tail.subarray(offset - tailAt, offset - tailAt + length)
        : await range(offset, length);
    const body = new IndexBody(memorySource(codec.encryptor.open(sealed, iv)));
    try {
      return Array.from({ length: body.count }, (_, position) => body.entryAt(position));
    } finally {
      body.close();
    }
  } catch (error) {
    if (isCode(error, 'DECRYPT_FAILED', 'BAD_INDEX', 'INVALID_RANGE')) return undefined;
    throw error;
  }
}
