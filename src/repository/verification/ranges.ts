import { giveBack } from '../../base/index.ts';
import { blobId } from '../../blob/index.ts';
import { hashOf } from '../index/content-id.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';

/** Maximum range of one request. Our choice: a small process has memory for eight. */
const RANGE_BYTES_MAX = 4 << 20;
/** Maximum unused bytes between two contents of a range. Our choice. */
const GAP_BYTES_MAX = 64 << 10;

/** Reused buffers for ranges. Garbage collection of new buffers is late on busy machines. */
export class RangeBuffers {
  readonly #free: Uint8Array[] = [];

  /**
   * Runs `use` with a buffer of at least this length. `use` returns whether the buffer was filled.
   * Frees large buffers at once. Drops a buffer after a failed read, because the aborted storage
   * request may still write to it.
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

/** Groups adjacent contents of a pack, in the order of their offsets. */
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

/** Reads adjacent contents with one request. Undefined if it fails. Read unsound ones again. */
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
