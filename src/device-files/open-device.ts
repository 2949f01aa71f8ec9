import { asBuffer, isCode } from '../base/index.ts';
import { type Device, notRead, partOf } from './device.ts';
import { Ext4 } from './ext4/ext4.ts';
import { isExt4 } from './ext4/superblock.ts';
import type { DeviceEntry, DeviceFile, WalkedFile } from './file-system.ts';
import { type Partition, partitionsOf } from './partitions.ts';

/**
 * Opens the files on a device: an ext2, ext3 or ext4 file system, or a directory for each
 * partition. Throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ` with the recognized content, and errors of
 * the device.
 */
export async function openDevice(
  device: Device,
  signal: AbortSignal,
  name = '',
): Promise<DeviceFile> {
  const start = await readStart(device, signal);
  // Check ext4 first, as Linux would mount it: remains of an older file system may exist.
  if (isExt4(start)) return (await Ext4.open(device, signal)).root(name, signal);
  const known = recognized(start);
  if (known !== undefined)
    throw notRead(
      `it holds ${known}, which is not read here: fetch the whole device, and open it there`,
    );
  const partitions = await partitionsOf(device, start, signal);
  if (partitions) return new PartitionTable(device, partitions, name);
  if (device.sizeBytes === 0) throw notRead('it is empty');
  const isBlank = start.every((byte) => byte === 0);
  throw notRead(
    isBlank
      ? 'it begins with zeros: nobody has made a file system on it'
      : 'what is on it is not known here: it may belong to a program that uses the device without a file system',
  );
}

const DIRECTORY_MODE = 0o755;
const FILE_MODE = 0o644;
/** Bytes per read of a partition that is shown as one file. */
const PIECE_BYTES = 1 << 20;

const entryOf = (name: string, type: 'd' | 'f', size = 0): DeviceEntry => ({
  name,
  type,
  size,
  uid: 0,
  gid: 0,
  mtimeNs: 0n,
  id: name,
  mode: type === 'd' ? DIRECTORY_MODE : FILE_MODE,
});

/** Shows partitions as directories. A partition without readable files is one file. */
class PartitionTable implements DeviceFile {
  readonly entry: DeviceEntry;
  readonly notes = [];
  readonly #device: Device;
  readonly #partitions: readonly Partition[];

  constructor(device: Device, partitions: readonly Partition[], name: string) {
    this.entry = entryOf(name, 'd');
    this.#device = device;
    this.#partitions = partitions;
  }

  async find(
    { name }: { readonly name: string },
    signal: AbortSignal,
  ): Promise<DeviceFile | undefined> {
    const partition = this.#partitions.find((each) => nameOf(each) === name);
    return partition && (await this.#open(partition, signal));
  }

  async *list(signal: AbortSignal): AsyncGenerator<readonly DeviceEntry[], void, void> {
    for (const partition of this.#partitions) yield [(await this.#open(partition, signal)).entry];
  }

  async *walk(signal: AbortSignal): AsyncGenerator<WalkedFile, void, void> {
    yield { file: this, path: '' };
    for (const partition of this.#partitions) {
      const opened = await this.#open(partition, signal);
      for await (const { file, path } of opened.walk(signal)) {
        const name = nameOf(partition);
        yield { file, path: path === '' ? name : `${name}/${path}` };
      }
    }
  }

  async *bytes(): AsyncGenerator<Uint8Array, void, void> {
    // A directory has no bytes.
  }

  async #open(partition: Partition, signal: AbortSignal): Promise<DeviceFile> {
    const name = nameOf(partition);
    const part = partOf(this.#device, partition.startBytes, partition.sizeBytes);
    try {
      return await openPart(part, signal, name);
    } catch (error) {
      if (!isCode(error, 'DEVICE_NOT_READ', 'DEVICE_DAMAGED')) throw error;
      return wholeFile(name, part, error.message);
    }
  }
}

const nameOf = ({ number }: Partition): string => `p${number}`;

/** Rejects partitions inside a partition. */
async function openPart(part: Device, signal: AbortSignal, name: string): Promise<DeviceFile> {
  const opened = await openDevice(part, signal, name);
  if (opened instanceof PartitionTable)
    throw notRead('it has partitions itself, which are not read here');
  return opened;
}

function wholeFile(name: string, device: Device, note: string): DeviceFile {
  const entry = entryOf(name, 'f', device.sizeBytes);
  const file: DeviceFile = {
    entry,
    notes: [note],
    find: () => Promise.resolve(undefined),
    list: async function* () {
      // A file has no entries.
    },
    walk: async function* () {
      await Promise.resolve();
      yield { file, path: '' };
    },
    bytes: (signal) => deviceBytes(device, signal),
  };
  return file;
}

async function* deviceBytes(
  device: Device,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, void> {
  for (let at = 0; at < device.sizeBytes; at += PIECE_BYTES) {
    signal.throwIfAborted();
    yield await device.read(at, Math.min(PIECE_BYTES, device.sizeBytes - at), signal);
  }
}

/** Unsupported contents, by bytes at an offset, as in util-linux (libblkid 2.38). */
const SIGNATURES: readonly (readonly [string, number, string | readonly number[]])[] = [
  ['LUKS encryption', 0, 'LUKS\xba\xbe'],
  ['an XFS file system', 0, 'XFSB'],
  ['a Btrfs file system', 0x1_0040, '_BHRfS_M'],
  ['a physical volume of LVM', 24, 'LVM2 001'],
  ['a physical volume of LVM', 512 + 24, 'LVM2 001'],
  ['a physical volume of LVM', 1024 + 24, 'LVM2 001'],
  ['a physical volume of LVM', 1536 + 24, 'LVM2 001'],
  ['an NTFS file system', 3, 'NTFS    '],
  ['BitLocker encryption', 3, '-FVE-FS-'],
  ['an exFAT file system', 3, 'EXFAT   '],
  ['a FAT file system', 54, 'FAT12   '],
  ['a FAT file system', 54, 'FAT16   '],
  ['a FAT file system', 82, 'FAT32   '],
  ['an F2FS file system', 1024, [0x10, 0x20, 0xf5, 0xf2]],
  ['an EROFS file system', 1024, [0xe2, 0xe1, 0xf5, 0xe0]],
  ['a SquashFS file system', 0, 'hsqs'],
  ['an ISO 9660 file system', 0x8001, 'CD001'],
  ['a JFS file system', 0x8000, 'JFS1'],
  ['a ReiserFS file system', 0x1_0034, 'ReIsEr'],
  ['a GFS2 file system', 0x1_0000, [0x01, 0x16, 0x19, 0x70]],
  ['an OCFS2 file system', 0x2000, 'OCFSV2'],
  ['a VMFS file system', 0x10_0000, [0x0d, 0xd0, 0x01, 0xc0]],
  ['swap space', 4096 - 10, 'SWAPSPACE2'],
  ['a member of a Linux RAID', 0, [0xfc, 0x4e, 0x2b, 0xa9]],
  ['a member of a Linux RAID', 4096, [0xfc, 0x4e, 0x2b, 0xa9]],
  ['a device of bcache', 4096 + 24, [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]],
  ['an OSD of Ceph (BlueStore)', 0, 'bluestore block device'],
  ['a disk of Oracle ASM', 32, 'ORCLDISK'],
  ['an image in the format qcow2', 0, 'QFI\xfb'],
];
/** ZFS writes uberblocks into the second half of a label, starting at any of them. */
const ZFS = { from: 0x2_0000, until: 0x4_0000, stepBytes: 1024, magic: 0x00ba_b10c } as const;
const START_BYTES = 0x10_0000 + 512;

/** The start of a device, long enough to recognize its contents. Throws errors of the device. */
async function readStart(device: Device, signal: AbortSignal): Promise<Buffer> {
  return asBuffer(await device.read(0, Math.min(START_BYTES, device.sizeBytes), signal));
}

/** Name of an unsupported content of the device; undefined if not recognized. */
function recognized(start: Buffer): string | undefined {
  for (const [name, offset, magic] of SIGNATURES) {
    const bytes = typeof magic === 'string' ? Buffer.from(magic, 'latin1') : Buffer.from(magic);
    if (start.subarray(offset, offset + bytes.length).equals(bytes)) return name;
  }
  for (let at = ZFS.from; at + 8 <= Math.min(ZFS.until, start.length); at += ZFS.stepBytes) {
    if (start.readBigUInt64LE(at) === BigInt(ZFS.magic)) return 'a member of a ZFS pool';
  }
  return undefined;
}
