import { type BlobId, blobId, type BlobStorage } from '../../blob/index.ts';
import type { IndexEntry } from '../index/entry.ts';

/**
 * What is read of a metadata pack at once: directories of one tree lie side by side. Our choice.
 */
const BLOCK_BYTES = 1 << 20;
/** Blocks held; packs never change, so they stay good. */
export const BLOCKS_MAX = 6;

interface Block {
  readonly bytes: Promise<Uint8Array>;
  /** What it was read into, to be read into again. */
  readonly memory: Uint8Array;
  /** Reads that have not looked at the bytes yet. */
  users: number;
  isHeld: boolean;
  /** A read that was given up may still write into it. */
  isFailed: boolean;
}

/**
 * Packed contents from the storage; those of metadata packs through blocks that serve their
 * neighbours too.
 */
export class MetadataBlocks {
  readonly #storage: BlobStorage;
  readonly #lengths = new Map<BlobId, Promise<number>>();
  /** By `pack offset`, the one used longest ago first. */
  readonly #blocks = new Map<string, Block>();
  /**
   * Memory of blocks that nobody uses: made anew for each, it would have the heap collected every
   * few blocks.
   */
  readonly #idle: Uint8Array[] = [];

  constructor(storage: BlobStorage) {
    this.#storage = storage;
  }

  /**
   * Calls back with the bytes, which are good until it returns. Throws what `getBlob` and the
   * callback throw.
   */
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
    // A failed read is not kept.
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
    // A pack that is too short for the content is reported by the read itself.
    const until = Math.max(end, Math.min(length, offset + BLOCK_BYTES));
    return this.#storage.getBlob(id, { offset, lengthBytes: until - offset, into });
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

/**
 * Things in the order of the places of their contents, those together that {@link MetadataBlocks}
 * read with one request. Whoever reads a group one after the other, and no more groups beside each
 * other than there are blocks, reads each block once.
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
