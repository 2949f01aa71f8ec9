import { describe, expect, it } from 'vitest';
import { openDevice } from '../../src/device-files/index.ts';
import { bytesOf, fileAt, imageOf, MemoryDevice, namesIn, never } from './image.ts';

const MIB = 1 << 20;
const open = (bytes: Buffer) => openDevice(new MemoryDevice(bytes), never);
const EXT4 = imageOf('journal-1');
const START = 2048;

/**
 * A device with an ext4 file system in sectors from {@link START} on, and bytes of XFS behind it.
 */
function partitioned(): Buffer {
  const device = Buffer.alloc(EXT4.length + 4 * MIB);
  EXT4.copy(device, START * 512);
  device.write('XFSB', START * 512 + EXT4.length);
  device.writeUInt16LE(0xaa55, 510);
  return device;
}

function putMbr(
  device: Buffer,
  sector: number,
  entries: readonly (readonly [type: number, first: number, sectors: number])[],
): void {
  entries.forEach(([type, first, sectors], index) => {
    const at = sector * 512 + 446 + index * 16;
    device.writeUInt8(type, at + 4);
    device.writeUInt32LE(first, at + 8);
    device.writeUInt32LE(sectors, at + 12);
  });
  device.writeUInt16LE(0xaa55, sector * 512 + 510);
}

const SECTORS = EXT4.length / 512;

function gpt(entries: readonly (readonly [number, bigint, bigint])[], sectorBytes = 512): Buffer {
  const device = partitioned();
  putMbr(device, 0, [[0xee, 1, device.length / 512 - 1]]);
  device.write('EFI PART', sectorBytes);
  device.writeBigUInt64LE(2n, sectorBytes + 72);
  device.writeUInt32LE(128, sectorBytes + 80);
  device.writeUInt32LE(128, sectorBytes + 84);
  for (const [index, first, last] of entries) {
    const at = 2 * sectorBytes + index * 128;
    device.fill(0x11, at, at + 16);
    device.writeBigUInt64LE(first, at + 32);
    device.writeBigUInt64LE(last, at + 40);
  }
  return device;
}

describe('a device with partitions', () => {
  const sectors = BigInt(SECTORS);
  const first = BigInt(START);
  it.each([
    [
      'GPT',
      gpt([
        [0, first, first + sectors - 1n],
        [2, first + sectors, first + sectors + 9n],
      ]),
      'p3',
    ],
    [
      'GPT with sectors of 4 KiB',
      gpt(
        [
          [0, first / 8n, (first + sectors) / 8n - 1n],
          [2, (first + sectors) / 8n, (first + sectors) / 8n],
        ],
        4096,
      ),
      'p3',
    ],
    [
      'MBR',
      (() => {
        const device = partitioned();
        putMbr(device, 0, [
          [0x83, START, SECTORS],
          [0x83, START + SECTORS, 10],
        ]);
        return device;
      })(),
      'p2',
    ],
  ])(
    'of a %s has a directory for each file system, and a file for others',
    async (_, device, other) => {
      const root = await open(device);
      expect(await namesIn(root)).toEqual(['p1', other]);
      expect((await namesIn(await fileAt(root, 'p1'))).sort()).toEqual([
        ...['a', 'escaped', 'lost+found', 'new'],
      ]);
      const xfs = await fileAt(root, other);
      expect([xfs.entry.type, xfs.notes]).toEqual([
        ...[
          'f',
          [
            'it holds an XFS file system, which is not read here: fetch the whole device, and open it there',
          ],
        ],
      ]);
      expect((await bytesOf(xfs)).toString('latin1', 0, 4)).toBe('XFSB');
      expect(await root.find({ name: 'p9' }, never)).toBeUndefined();
      const paths = (await Array.fromAsync(root.walk(never))).map(({ path }) => path);
      expect(paths).toEqual(expect.arrayContaining(['', 'p1', 'p1/new', 'p1/a', other]));
    },
  );

  it('has logical ones', async () => {
    const device = Buffer.concat([partitioned(), Buffer.alloc(MIB)]);
    const extended = START + SECTORS + 100;
    putMbr(device, 0, [
      [0x83, START, SECTORS],
      [0x05, extended, 1000],
    ]);
    putMbr(device, extended, [
      [0x83, 1, 5],
      [0x05, 20, 30],
    ]);
    putMbr(device, extended + 20, [
      [0x83, 1, 5],
      [0, 0, 0],
    ]);
    expect(await namesIn(await open(device))).toEqual(['p1', 'p5', 'p6']);
    // A chain that leads back to its start has an end all the same.
    putMbr(device, extended + 20, [
      [0x83, 1, 5],
      [0x05, 20, 30],
    ]);
    expect((await namesIn(await open(device))).length).toBe(252);
    putMbr(device, extended + 20, [
      [0x83, 1, 5],
      [0x05, 0xffff_ff00, 30],
    ]);
    await expect(open(device)).rejects.toMatchObject({ code: 'DEVICE_DAMAGED' });
  });

  it.each([
    ['a partition that begins behind the end', gpt([[0, 1n << 40n, (1n << 40n) + 1n]])],
    ['a partition that ends before it begins', gpt([[0, 100n, 50n]])],
    [
      'a table of four billion entries',
      (() => {
        const device = gpt([]);
        device.writeUInt32LE(0xffff_ffff, 512 + 80);
        return device;
      })(),
    ],
  ])('%s is damage', async (_, device) => {
    await expect(open(device)).rejects.toMatchObject({ code: 'DEVICE_DAMAGED' });
  });

  it('a partition is not looked through for partitions', async () => {
    const device = partitioned();
    putMbr(device, 0, [[0x83, 100, 50]]);
    putMbr(device, 100, [[0x83, 1, 5]]);
    const root = await open(device);
    expect((await fileAt(root, 'p1')).notes[0]).toContain('partitions itself');
  });
});

describe('a device that holds something else', () => {
  const withMagic = (offset: number, magic: string | readonly number[]): Buffer => {
    const device = Buffer.alloc(2 * MIB);
    Buffer.from(magic as string, 'latin1').copy(device, offset);
    return device;
  };
  it.each([
    ['XFS', withMagic(0, 'XFSB')],
    ['Btrfs', withMagic(0x10040, '_BHRfS_M')],
    ['LVM', withMagic(512 + 24, 'LVM2 001')],
    ['LUKS', withMagic(0, 'LUKS\xba\xbe')],
    ['NTFS', withMagic(3, 'NTFS    ')],
    ['swap', withMagic(4086, 'SWAPSPACE2')],
    ['RAID', withMagic(4096, [0xfc, 0x4e, 0x2b, 0xa9])],
    ['ZFS', withMagic(0x20000 + 5 * 1024, [0x0c, 0xb1, 0xba, 0x00, 0, 0, 0, 0])],
  ])('%s is named', async (name, device) => {
    await expect(open(device)).rejects.toMatchObject({
      code: 'DEVICE_NOT_READ',
      message: expect.stringMatching(
        new RegExp(`^it holds .*${name}.*, which is not read here`),
      ) as string,
    });
  });

  it.each([
    ['nothing', Buffer.alloc(MIB), 'it begins with zeros'],
    ['nothing at all', Buffer.alloc(0), 'it is empty'],
    ['something unknown', Buffer.alloc(MIB, 7), 'is not known here'],
    ['a few bytes', Buffer.alloc(3, 7), 'is not known here'],
  ])('%s is said so', async (_, device, text) => {
    await expect(open(device)).rejects.toMatchObject({
      code: 'DEVICE_NOT_READ',
      message: expect.stringContaining(text) as string,
    });
  });
});

describe('a file system that is not read rightly', () => {
  /** Changes a superblock without checksums. */
  const changed = (offset: number, change: (bytes: Buffer) => void): Buffer => {
    const image = imageOf('ext4-4k');
    change(image.subarray(1024 + offset));
    return image;
  };
  it.each([
    ['e2compr', 0x60, 0x1, 'its files are compressed'],
    ['a journal by itself', 0x60, 0x8, 'only the journal'],
    ['Lustre', 0x60, 0x1000, "Lustre's"],
    ['a feature of the future', 0x60, 0x4000_0000, 'incompat 0x40000000'],
  ])('%s is refused by its name', async (_, offset, bit, text) => {
    const image = changed(offset, (bytes) => bytes.writeUInt32LE(bytes.readUInt32LE() | bit));
    await expect(open(image)).rejects.toMatchObject({
      code: 'DEVICE_NOT_READ',
      message: expect.stringContaining(text) as string,
    });
  });

  it.each<[string, number, (bytes: Buffer) => void]>([
    ['blocks of 4 GiB', 0x18, (bytes) => bytes.writeUInt32LE(22)],
    ['more blocks than the device', 0x4, (bytes) => bytes.writeUInt32LE(0xffff_ffff)],
    ['inodes of 3 bytes', 0x58, (bytes) => bytes.writeUInt16LE(3)],
    ['no inodes', 0x0, (bytes) => bytes.writeUInt32LE(0)],
    ['groups of no blocks', 0x20, (bytes) => bytes.writeUInt32LE(0)],
    ['four billion inodes', 0x0, (bytes) => bytes.writeUInt32LE(0xffff_ffff)],
  ])('%s are damage', async (_, offset, change) => {
    await expect(open(changed(offset, change))).rejects.toMatchObject({ code: 'DEVICE_DAMAGED' });
  });

  it('a wrong checksum of the superblock is damage', async () => {
    const image = imageOf('ext4-1k-inline');
    image[1024 + 0x78] = 1;
    await expect(open(image)).rejects.toThrow('the checksum of its superblock is wrong');
  });

  it('an encrypted file is listed, and not read', async () => {
    const image = imageOf('ext4-4k');
    const etc = await fileAt(await open(image), 'etc');
    const [entry] = (await Array.fromAsync(etc.list(never)))
      .flat()
      .filter(({ name }) => name === 'hosts');
    // Without checksums, the inode is identified by its contents.
    const number = Number(entry?.id.slice('inode-'.length));
    const table = image.readUInt32LE(4096 + 8) * 4096 + (number - 1) * 256;
    image.writeUInt32LE(image.readUInt32LE(table + 0x20) | 0x800, table + 0x20);
    const hosts = await fileAt(await open(image), 'etc/hosts');
    expect(hosts.entry.size).toBe(20);
    await expect(bytesOf(hosts)).rejects.toMatchObject({ code: 'DEVICE_NOT_READ' });
  });
});
