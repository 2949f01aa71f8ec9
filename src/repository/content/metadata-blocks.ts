import { type BlobId, blobId, type BlobStorage } from '../../blob/index.ts';
import type { IndexEntry } from '../index/entry.ts';

/** What is read of a metadata pack at once: directories of one tree lie side by side. Our choice. */
const BLOCK_BYTES = 1 << 20;
/** Blocks held; packs never change, so they stay good. */
const BLOCKS_MAX = 6;

/** Packed contents from the storage; those of metadata packs through blocks that serve their neighbours too. */
export class MetadataBlocks {
  readonly #storage: BlobStorage;
  readonly #lengths = new Map<BlobId, Promise<number>>();
  /** By `pack offset`, the one used longest ago first. */
  readonly #blocks = new Map<string, Promise<Uint8Array>>();

  constructor(storage: BlobStorage) {
    this.#storage = storage;
  }

  /** Throws what `getBlob` throws. */
  async read(
    { packBlobId, packOffset, packedLength }: IndexEntry,
    { signal, fresh = false }: { signal?: AbortSignal | undefined; fresh?: boolean },
  ): Promise<Uint8Array> {
    const id = blobId(packBlobId);
    const first = Math.floor(packOffset / BLOCK_BYTES);
    const last = Math.floor((packOffset + packedLength - 1) / BLOCK_BYTES);
    if (fresh) this.#blocks.delete(`${id} ${first * BLOCK_BYTES}`);
    if (!packBlobId.startsWith('q') || first !== last || fresh) {
      const range = { offset: packOffset, lengthBytes: packedLength };
      return this.#storage.getBlob(id, { ...range, signal, fresh });
    }
    const block = await this.#block(id, first * BLOCK_BYTES, packOffset + packedLength);
    const at = packOffset - first * BLOCK_BYTES;
    return block.subarray(at, at + packedLength);
  }

  #block(id: BlobId, offset: number, end: number): Promise<Uint8Array> {
    const key = `${id} ${offset}`;
    const block = this.#blocks.get(key) ?? this.#load(id, offset, end);
    this.#blocks.delete(key);
    this.#blocks.set(key, block);
    // A failed read is not kept.
    block.catch(() => this.#blocks.delete(key));
    const [oldest] = this.#blocks.keys();
    if (this.#blocks.size > BLOCKS_MAX && oldest !== undefined) this.#blocks.delete(oldest);
    return block;
  }

  async #load(id: BlobId, offset: number, end: number): Promise<Uint8Array> {
    const length = await this.#packLength(id);
    // A pack that is too short for the content is reported by the read itself.
    const until = Math.max(end, Math.min(length, offset + BLOCK_BYTES));
    return this.#storage.getBlob(id, { offset, lengthBytes: until - offset });
  }

  #packLength(id: BlobId): Promise<number> {
    let length = this.#lengths.get(id);
    if (!length) {
      length = this.#storage.getMetadata(id).then(({ lengthBytes }) => lengthBytes);
      length.catch(() => this.#lengths.delete(id));
      this.#lengths.set(id, length);
    }
    return length;
  }
}
