import { giveBack } from '../../base/index.ts';
import { blobId } from '../../blob/index.ts';
import { hashOf } from '../index/content-id.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';

/**
 * Neighbours in a pack that are read with one request. Our choice: eight of those at once are what
 * a small process has room for.
 */
const RANGE_BYTES_MAX = 4 << 20;
/** What lies unused between two contents that are read together. Our choice. */
const GAP_BYTES_MAX = 64 << 10;

/**
 * What ranges are read into, one after the other: buffers that are made anew for each stay until
 * the next collection of garbage, which a busy machine puts off.
 */
export class RangeBuffers {
  readonly #free: Uint8Array[] = [];

  /**
   * Runs `use` with a buffer for so many bytes; that of a large content is given back at once. One
   * that a read has failed to fill is left to the collection: a storage that was given up may write
   * into it still. `use` says whether it was filled.
   */
  async lend(lengthBytes: number, use: (buffer: Uint8Array) => Promise<boolean>): Promise<void> {
    const isLarge = lengthBytes > RANGE_BYTES_MAX;
    const kept = isLarge ? undefined : this.#free.pop();
    const buffer = kept ?? new Uint8Array(Math.max(lengthBytes, RANGE_BYTES_MAX));
    const isFilled = await use(buffer);
    if (!isFilled) return;
    if (isLarge) giveBack(buffer);
    else this.#free.push(buffer);
  }
}

/** Neighbours of one pack, in the order of their offsets. */
export function* rangesOf(entries: readonly IndexEntry[]): Generator<IndexEntry[]> {
  let range: IndexEntry[] = [];
  let [start, end] = [0, 0];
  for (const entry of entries) {
    const entryEnd = entry.packOffset + entry.packedLength;
    const isFar = entry.packOffset - end > GAP_BYTES_MAX || entryEnd - start > RANGE_BYTES_MAX;
    if (range.length > 0 && isFar) {
      yield range;
      range = [];
    }
    if (range.length === 0) start = entry.packOffset;
    end = Math.max(entryEnd, range.length === 0 ? 0 : end);
    range.push(entry);
  }
  if (range.length > 0) yield range;
}

export function bytesOf(range: readonly IndexEntry[]): number {
  const start = range[0]?.packOffset ?? 0;
  const end = range.reduce(
    (last, { packOffset, packedLength }) => Math.max(last, packOffset + packedLength),
    start,
  );
  return end - start;
}

/**
 * Reads neighbours with one request; undefined when that failed. What does not prove sound this way
 * is for a second look of its own.
 */
export async function readRange(
  { contents, storage, codec }: Repository,
  range: readonly IndexEntry[],
  into: Uint8Array,
): Promise<((entry: IndexEntry) => boolean) | undefined> {
  const [first] = range;
  const start = first?.packOffset ?? 0;
  let bytes: Uint8Array;
  try {
    const options = { offset: start, lengthBytes: bytesOf(range), into };
    bytes = await storage.getBlob(blobId(first?.packBlobId ?? ''), options);
  } catch {
    return undefined;
  }
  return (entry) => {
    const at = entry.packOffset - start;
    try {
      const plaintext = contents.openPacked(entry, bytes.subarray(at, at + entry.packedLength));
      const isSound = Buffer.compare(codec.hasher.hash([plaintext]), hashOf(entry.contentId)) === 0;
      giveBack(plaintext);
      return isSound;
    } catch {
      return false;
    }
  };
}
