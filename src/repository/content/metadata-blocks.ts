import { type BlobId, blobId, type BlobStorage, METADATA_BLOCK_BYTES } from '../../blob/index.ts';
import type { IndexEntry } from '../index/entry.ts';

/** Bytes read at once from a metadata pack. Directories of a tree are adjacent. Our choice. */
const BLOCK_BYTES = METADATA_BLOCK_BYTES;
/** Blocks in the cache. Packs never change, so blocks stay valid. */
export const BLOCKS_MAX = 6;

interface Block {
  readonly bytes: Promise<Uint8Array>;
  /** The buffer of `bytes`, for reuse. */
  readonly memory: Uint8Array;
  /** Reads that still need the bytes. */
  users: number;
  isHeld: boolean;
  /** The failed read may still write into the memory. */
  isFailed: boolean;
}

/** Reads packed contents. Metadata packs are read in blocks that also serve adjacent contents. */
export class MetadataBlocks {
  readonly #storage: BlobStorage;
  readonly #lengths = new Map<BlobId, Promise<number>>();
  /** Blocks by `pack offset`, least recently used first. */
  readonly #blocks = new Map<string, Block>();
  /** Buffers of dropped blocks, for reuse. New buffers would trigger frequent collections. */
  readonly #idle: Uint8Array[] = [];

  constructor(storage: BlobStorage) {
    this.#storage = storage;
  }

  /** Passes the bytes, valid until `use` returns. Throws errors of `getBlob` and `use`. */
  async read<T>(
    { packBlobId, packOffset, packedLength }: IndexEntry,
    { signal, fresh = false }: { signal?: AbortSignal | undefined; fresh?: boolean },
    use: (bytes: Uint8Array) => T,
  ): Promise<T> {
    const id = blobId(packBlobId);
    const first = Math.floor(packOffset / BLOCK_BYTES);
    const last = Math.floor((packOffset + packedLength - 1) / BLOCK_BYTES);
    if (fresh) this.#drop(`${id} ${first * BLOCK_BYTES}`);
    if (!packBlobId.startsWith('q') || first !== last || fresh) {
      const range = { offset: packOffset, lengthBytes: packedLength };
      return use(await this.#storage.getBlob(id, { ...range, signal, fresh }));
    }
    const block = this.#block(id, first * BLOCK_BYTES, packOffset + packedLength);
    const at = packOffset - first * BLOCK_BYTES;
    block.users++;
    try {
      return use((await block.bytes).subarray(at, at + packedLength));
    } finally {
      block.users--;
      this.#recycle(block);
    }
  }

  #block(id: BlobId, offset: number, end: number): Block {
    const key = `${id} ${offset}`;
    const block = this.#blocks.get(key) ?? this.#begin(key, id, offset, end);
    this.#blocks.delete(key);
    this.#blocks.set(key, block);
    const [oldest] = this.#blocks.keys();
    if (this.#blocks.size > BLOCKS_MAX && oldest !== undefined) this.#drop(oldest);
    return block;
  }

  #begin(key: string, id: BlobId, offset: number, end: number): Block {
    const memory = this.#idle.pop() ?? Buffer.allocUnsafeSlow(BLOCK_BYTES);
    const bytes = this.#load(id, offset, end, memory);
    const block = { bytes, memory, users: 0, isHeld: true, isFailed: false };
    // Failed reads are not cached.
    bytes.catch(() => {
      block.isFailed = true;
      if (this.#blocks.get(key) === block) this.#drop(key);
    });
    return block;
  }

  #drop(key: string): void {
    const block = this.#blocks.get(key);
    if (!block) return;
    this.#blocks.delete(key);
    block.isHeld = false;
    this.#recycle(block);
  }

  #recycle({ memory, users, isHeld, isFailed }: Block): void {
    if (users > 0 || isHeld || isFailed) return;
    if (this.#idle.length < BLOCKS_MAX) this.#idle.push(memory);
  }

  async #load(id: BlobId, offset: number, end: number, into: Uint8Array): Promise<Uint8Array> {
    const length = await this.#packLength(id);
    // If the pack is too short for the content, the read itself reports it.
    const until = Math.max(end, Math.min(length, offset + BLOCK_BYTES));
    return this.#storage.getBlob(id, { offset, lengthBytes: until - offset, into });
  }

  #packLength(id: BlobId): Promise<number> {
    let length = this.#lengths.get(id);
    if (!length) {
      const metadata = this.#storage.getMetadata(id, { mayBeCached: true });
      length = metadata.then(({ lengthBytes }) => lengthBytes);
      length.catch(() => this.#lengths.delete(id));
      this.#lengths.set(id, length);
    }
    return length;
  }
}

/**
 * Sorts things by the place of their contents. A group holds the things that {@link MetadataBlocks}
 * reads with one request. Read each group in sequence, and at most BLOCKS_MAX groups in parallel.
 * Then each block is read once.
 */
export function groupByBlock<T>(
  things: readonly T[],
  entryOf: (thing: T) => Pick<IndexEntry, 'packBlobId' | 'packOffset'> | undefined,
): T[][] {
  const placed = things.map((thing) => {
    const { packBlobId: pack, packOffset: offset } = entryOf(thing) ?? NOWHERE;
    return { thing, pack, offset, block: Math.floor(offset / BLOCK_BYTES) };
  });
  placed.sort((a, b) => (a.pack === b.pack ? a.offset - b.offset : a.pack < b.pack ? -1 : 1));
  const groups: T[][] = [];
  placed.forEach(({ thing, pack, block }, i) => {
    const before = placed[i - 1];
    const isNear = pack.startsWith('q') && before?.pack === pack && before.block === block;
    if (isNear) groups.at(-1)?.push(thing);
    else groups.push([thing]);
  });
  return groups;
}

const NOWHERE = { packBlobId: '', packOffset: 0 };
