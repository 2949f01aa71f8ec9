import { randomHex } from '../../base/index.ts';
import type { BlobId, BlobMetadata } from '../../blob/index.ts';
import { forEachIndexBlob } from '../content/index-blobs.ts';
import { sealBlob } from '../content/sealed-blob.ts';
import { CommittedIndex } from '../index/committed-index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { memorySource } from '../index/byte-source.ts';
import { IndexBody } from '../index/index-body.ts';
import { encodeIndex } from '../index/index-writer.ts';
import type { OpenScratch } from '../index/scratch-file.ts';
import { protectedPut, type Repository } from '../repository.ts';
import { CompactionSums } from './compaction-sums.ts';

/** Entries in a compacted blob, which is put from memory. Kopia allows 16 million. */
const SHARD_ENTRIES = 250_000;
/** Memory for the blobs being merged. More goes to scratch files. */
const INDEX_MEMORY_BYTES = 48 << 20;

export interface CompactionOptions {
  readonly memoryBytes?: number;
  readonly openScratch?: OpenScratch;
}

/**
 * Merges index blobs into one set of shards, and keeps deleted entries. A set counts only when
 * complete. So the last shard is put only after all shards together match the inputs. Throws
 * `COMPACTION_MISMATCH`.
 */
export async function writeCompaction(
  { storage, codec, format, random }: Pick<Repository, 'storage' | 'codec' | 'format' | 'random'>,
  prefix: string,
  blobs: readonly BlobMetadata[],
  { memoryBytes = INDEX_MEMORY_BYTES, openScratch }: CompactionOptions = {},
): Promise<BlobId[]> {
  const sums = new CompactionSums();
  const drop = (entry: IndexEntry): void => {
    sums.drop(entry);
  };
  // Watermark -1 hides nothing, so that entries hidden from readers are kept.
  const index = new CommittedIndex(memoryBytes, -1, { onSuperseded: drop, openScratch });
  const written: BlobId[] = [];
  try {
    await forEachIndexBlob(storage, codec, blobs, (body) => {
      sums.addInput(body);
      index.add(body);
    });
    const shards = Math.max(1, Math.ceil(countOf(index.entries()) / SHARD_ENTRIES));
    const suffix = `-s${randomHex(8, random)}-c${shards}`;
    for (const shard of inShards(index.entries({}, drop))) {
      const body = encodeIndex(format.parameters.indexVersion, shard);
      sums.addOutput(new IndexBody(memorySource(Buffer.from(body))));
      if (written.length === shards - 1) sums.assertEqual(`${prefix} of ${blobs.length} blobs`);
      const { id, bytes } = sealBlob(codec, prefix, suffix, body);
      await storage.putBlob(id, [bytes], protectedPut(format));
      written.push(id);
    }
    return written;
  } catch (error) {
    // Longshore and Kopia ignore an incomplete set, so it only uses space.
    for (const id of written) await storage.deleteBlob(id).catch(() => undefined);
    throw error;
  } finally {
    index.close();
  }
}

function* inShards(entries: Iterable<IndexEntry>): Generator<IndexEntry[]> {
  let shard: IndexEntry[] = [];
  for (const entry of entries) {
    shard.push(entry);
    if (shard.length === SHARD_ENTRIES) {
      yield shard;
      shard = [];
    }
  }
  if (shard.length > 0) yield shard;
}

function countOf(entries: Iterable<IndexEntry>): number {
  let count = 0;
  for (const entry of entries) if (entry.contentId) count++;
  return count;
}
