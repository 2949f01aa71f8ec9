import { describe, expect, it } from 'vitest';
import { isCode } from '../../src/base/index.ts';
import { openDevice } from '../../src/device-files/index.ts';
import { fileAt, imageOf, MemoryDevice, namesIn, never } from './image.ts';
import { BLOCK_BYTES, SyntheticImage } from './synthetic.ts';

const RUNS = Number(process.env['RUNS'] ?? 40);

/** Numbers by seed (mulberry32). */
function numbers(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

/** Some numbers in blocks that are in use become others. */
function mutated(image: Buffer, used: readonly number[], seed: number): Buffer {
  const random = numbers(seed);
  const copy = Buffer.from(image);
  for (let change = 0; change <= random(4); change++) {
    const at = (used[random(used.length)] ?? 0) + random(256) * 4;
    const value = [
      0,
      1,
      0xffff_ffff,
      0x7fff_ffff,
      copy.readUInt32LE(at) ^ (1 << random(32)),
      random(2 ** 32),
    ];
    copy.writeUInt32LE((value[random(value.length)] as number) >>> 0, at);
  }
  return copy;
}

/** Everything is read, up to a bound. Returns the code of the failure. */
async function readAll(device: MemoryDevice): Promise<string | undefined> {
  try {
    const root = await openDevice(device, never);
    let entries = 0;
    for await (const { file } of root.walk(never)) {
      if (++entries > 5000) return 'MANY';
      let bytes = 0;
      for await (const part of file.bytes(never)) {
        bytes += part.length;
        if (bytes > 16 << 20) break;
      }
    }
    return undefined;
  } catch (error) {
    if (isCode(error, 'DEVICE_DAMAGED', 'DEVICE_NOT_READ')) return error.code;
    throw error;
  }
}

describe('an image that somebody has tampered with', () => {
  it.each(['ext2-1k', 'ext4-4k', 'journal-1'])(
    '%s: whatever is changed, reading ends, in order or with a sentence',
    async (name) => {
      const image = imageOf(name);
      const kib = Array.from({ length: image.length / 1024 }, (_, at) => at * 1024);
      // The contents of files do not matter: skip blocks that repeat one byte.
      const used = kib.filter((at) => new Set(image.subarray(at, at + 1024)).size > 2);
      const codes = new Map<string | undefined, number>();
      for (let seed = 0; seed < RUNS; seed++) {
        const device = new MemoryDevice(mutated(image, used, seed));
        const code = await readAll(device).catch((error: unknown) => {
          throw new Error(`seed ${seed}`, { cause: error });
        });
        expect([seed, device.bytesRead < 400 << 20]).toEqual([seed, true]);
        codes.set(code, (codes.get(code) ?? 0) + 1);
      }
      // Some changes hit data that is read, and some do not.
      expect(codes.get('DEVICE_DAMAGED')).toBeGreaterThan(0);
      expect(codes.get(undefined)).toBeGreaterThan(0);
    },
    60_000,
  );

  /** The place in an image of a directory's entry for a name. */
  const entryAt = (image: Buffer, name: string): number => image.indexOf(Buffer.from(name)) - 8;

  it('a directory that contains one above it is damage, and its names are listed', async () => {
    const image = imageOf('ext4-4k');
    const root = await openDevice(new MemoryDevice(image), never);
    const deep = await fileAt(root, 'etc');
    const number = Number(deep.entry.id.slice('inode-'.length));
    // "nothing" in etc/deep becomes etc once more.
    image.writeUInt32LE(number, entryAt(image, 'nothing'));
    const again = await openDevice(new MemoryDevice(image), never);
    expect(await namesIn(await fileAt(again, 'etc/deep'))).toContain('nothing');
    await expect(
      fileAt(again, 'etc/deep/nothing').then((file) => namesIn(file)),
    ).rejects.toMatchObject({ code: 'DEVICE_DAMAGED' });
    await expect(Array.fromAsync(again.walk(never))).rejects.toThrow('and says that it is in');
  });

  it('names of an inode that is not in use are listed with a mark, and end an archive', async () => {
    const image = imageOf('ext4-4k');
    image.writeUInt32LE(1500, entryAt(image, 'nothing'));
    const root = await openDevice(new MemoryDevice(image), never);
    const deep = await fileAt(root, 'etc/deep');
    const entries = (await Array.fromAsync(deep.list(never))).flat();
    expect(entries.find(({ name }) => name === 'nothing')).toMatchObject({ type: '?', size: 0 });
    await expect(fileAt(root, 'etc/deep/nothing')).rejects.toMatchObject({
      code: 'DEVICE_DAMAGED',
    });
    await expect(Array.fromAsync(root.walk(never))).rejects.toMatchObject({
      code: 'DEVICE_DAMAGED',
    });
  });

  it('whoever goes ends the reading', async () => {
    const root = await openDevice(new MemoryDevice(imageOf('ext4-many')), never);
    const tib = await fileAt(root, 'tib');
    const stop = new AbortController();
    const read = async (): Promise<void> => {
      for await (const part of tib.bytes(stop.signal)) {
        if (part.length > 0) stop.abort(new Error('gone'));
      }
    };
    await expect(read()).rejects.toThrow('gone');
  });
});

describe('an image that somebody has made by hand', () => {
  const FILE = 11;
  const EMPTY = [0o100644, [], 0] as const;
  const many = (count: number) =>
    Array.from({ length: count }, (_, at) => [`n${at}`, FILE] as const);
  const journalHead = (blocks: number) => (block: Buffer) => {
    const numbers = { 0: 0xc03b_3998, 4: 4, 12: BLOCK_BYTES, 16: blocks, 20: 1, 24: 1, 28: 1 };
    for (const [at, value] of Object.entries(numbers)) block.writeUInt32BE(value, Number(at));
  };

  it('a directory of a billion blocks keeps nobody else waiting, and can be given up', async () => {
    const image = new SyntheticImage(64);
    const first = image.addNames([
      ['.', 2],
      ['..', 2],
    ]);
    const names = image.addNames(many(200));
    image.setInode(2, 0o40755, image.repeated(first, names), 2 ** 30 * BLOCK_BYTES);
    image.setInode(FILE, ...EMPTY);
    const root = await openDevice(image.device, never);
    const found = root.find({ name: 'absent' }, AbortSignal.timeout(50));
    await expect(found).rejects.toThrow('timeout');
  });

  it('a journal with a billion blocks that were freed takes no memory', async () => {
    const blocks = 1 << 15;
    const image = new SyntheticImage(64, { journalInode: 8 });
    const first = image.addNames([
      ['.', 2],
      ['..', 2],
    ]);
    image.setInode(2, 0o40755, [first], BLOCK_BYTES);
    const head = image.addBlock(journalHead(blocks));
    const revokes = image.addBlock((block) => {
      for (const [at, value] of [0xc03b_3998, 5, 1, BLOCK_BYTES].entries()) {
        block.writeUInt32BE(value, at * 4);
      }
    });
    image.setInode(8, 0o100600, image.repeated(head, revokes), blocks * BLOCK_BYTES);
    const before = process.memoryUsage().heapUsed;
    await openDevice(image.device, never);
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(100 << 20);
  });

  it('directories in each other with many names each are not held all at once', async () => {
    const depth = 2000;
    const image = new SyntheticImage(depth + 200, { inodes: depth + 100 });
    image.setInode(FILE, ...EMPTY);
    for (let at = 0; at < depth; at++) {
      const self = at === 0 ? 2 : 20 + at;
      const parent = at <= 1 ? 2 : 19 + at;
      const names = [['.', self], ['..', parent], ['d', 21 + at], ...many(300)] as const;
      image.setInode(self, 0o40755, [image.addNames(names)], BLOCK_BYTES);
    }
    const root = await openDevice(image.device, never);
    const walk = Array.fromAsync(root.walk(never));
    await expect(walk).rejects.toMatchObject({ code: 'DEVICE_NOT_READ' });
  });
});
