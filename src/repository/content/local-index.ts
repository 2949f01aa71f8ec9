import { isCode } from '../../base/index.ts';
import type { BlobMetadata, BlobStorage } from '../../blob/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { memorySource } from '../index/byte-source.ts';
import { IndexBody } from '../index/index-body.ts';
import { decodePostamble } from './pack.ts';
import type { BlobCodec } from './sealed-blob.ts';

/** Holds the whole local index of most packs: 40 bytes for each content. Our choice. */
const TAIL_BYTES = 64 << 10;

/**
 * The index at the end of a pack, for lost index blobs; Kopia reads it too. Besides its own
 * contents a pack may name contents of other packs that were deleted while it was filled. Undefined
 * if the end of the pack cannot be read. Throws `BLOB_NOT_FOUND`.
 */
export async function loadLocalIndex(
  storage: BlobStorage,
  codec: BlobCodec,
  pack: BlobMetadata,
): Promise<IndexEntry[] | undefined> {
  // Past the cache: such a pack is read once, before it is deleted.
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
