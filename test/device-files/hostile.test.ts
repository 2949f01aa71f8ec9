import { describe, expect, it } from 'vitest';
import { isCode } from '../../src/base/index.ts';
import { openDevice } from '../../src/device-files/index.ts';
import { fileAt, imageOf, MemoryDevice, namesIn, never } from './image.ts';

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
      // What a file holds is of no interest: blocks of one byte over and over are left out.
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
      // Some changes hit what is read, and some do not.
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
