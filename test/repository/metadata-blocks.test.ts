import { setImmediate } from 'node:timers/promises';
import { expect, it } from 'vitest';
import type { BlobId, BlobMetadata, BlobStorage, GetOptions } from '../../src/blob/index.ts';
import {
  BLOCKS_MAX,
  groupByBlock,
  MetadataBlocks,
} from '../../src/repository/content/metadata-blocks.ts';
import type { IndexEntry } from '../../src/repository/index.ts';

const PACK_BYTES = 3 << 20;
const LENGTH = 1000;

/** Each byte of a pack tells its name and place. */
const byteAt = (pack: number, at: number): number => (pack * 31 + Math.floor(at / 8)) & 255;

/** Synthetic packs without stored bytes. Notes the buffers of its reads. */
class MadePacks implements Partial<BlobStorage> {
  readonly memories = new Set<ArrayBufferLike>();
  reads = 0;
  /** Called after each read into given memory, before it is answered. */
  onRead: (bytes: Uint8Array) => Promise<void> | void = () => undefined;

  getMetadata(id: BlobId): Promise<BlobMetadata> {
    return Promise.resolve({ id, lengthBytes: PACK_BYTES, timestampNs: 0n });
  }

  async getBlob(
    id: BlobId,
    { offset = 0, lengthBytes = 0, into }: GetOptions = {},
  ): Promise<Uint8Array> {
    this.reads++;
    if (into) this.memories.add(into.buffer);
    await setImmediate();
    const bytes = into?.subarray(0, lengthBytes) ?? new Uint8Array(lengthBytes);
    const pack = Number(id.slice(1));
    for (let i = 0; i < lengthBytes; i++) bytes[i] = byteAt(pack, offset + i);
    await this.onRead(bytes);
    return bytes;
  }
}

const open = (storage: MadePacks): MetadataBlocks =>
  new MetadataBlocks(storage as unknown as BlobStorage);
const entryAt = (pack: number, packOffset: number): IndexEntry =>
  ({ packBlobId: `q${pack}`, packOffset, packedLength: LENGTH }) as IndexEntry;
const isSound = (pack: number, at: number, bytes: Uint8Array): boolean =>
  bytes.length === LENGTH && bytes.every((byte, i) => byte === byteAt(pack, at + i));

it('gives each read its own bytes, though the memory of blocks is used again', async () => {
  const storage = new MadePacks();
  // Some answers come long after the bytes.
  storage.onRead = async () => {
    for (let i = storage.reads % 4; i > 0; i--) await setImmediate();
  };
  const blocks = open(storage);
  let sound = 0;
  const one = async (i: number): Promise<void> => {
    const [pack, at] = [i % 11, (i * 7919 * LENGTH) % (PACK_BYTES - LENGTH)];
    if (await blocks.read(entryAt(pack, at), {}, (bytes) => isSound(pack, at, bytes))) sound++;
  };
  for (let from = 0; from < 200; from += 10)
    await Promise.all(Array.from({ length: 10 }, (_, i) => one(from + i)));
  expect(sound).toBe(200);
  expect(storage.reads).toBeGreaterThan(100);
  // The held blocks, and the blocks that callers were waiting for.
  expect(storage.memories.size).toBeLessThanOrEqual(BLOCKS_MAX + 10);
});

it('does not use the memory again that a failed read may still write into', async () => {
  const storage = new MadePacks();
  const blocks = open(storage);
  let late: Uint8Array | undefined;
  storage.onRead = (bytes) => {
    late = bytes;
    throw new Error('given up');
  };
  await expect(blocks.read(entryAt(0, 0), {}, () => 0)).rejects.toThrow('given up');
  storage.onRead = () => undefined;
  for (let pack = 0; pack < 20; pack++) {
    const use = (bytes: Uint8Array): boolean => {
      late?.fill(77);
      return isSound(pack, 0, bytes);
    };
    expect(await blocks.read(entryAt(pack, 0), {}, use)).toBe(true);
  }
});

it('groups what one request reads, in the order of places', () => {
  const MIB = 1 << 20;
  const places = [
    ['q2', 5],
    ['p1', 9],
    ['q1', MIB + 7],
    ['p1', 3],
    ['q1', 8],
    ['q1', MIB + 3],
    ['q1', 2],
  ] as const;
  const groups = groupByBlock(places, ([packBlobId, packOffset]) => ({ packBlobId, packOffset }));
  // In packs of file data, each content is read separately.
  expect(groups).toEqual([
    [['p1', 3]],
    [['p1', 9]],
    [
      ['q1', 2],
      ['q1', 8],
    ],
    [
      ['q1', MIB + 3],
      ['q1', MIB + 7],
    ],
    [['q2', 5]],
  ]);
  expect(groupByBlock(['lost'], () => undefined)).toEqual([['lost']]);
});
