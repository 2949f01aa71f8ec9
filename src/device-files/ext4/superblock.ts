import { asBuffer } from '../../base/index.ts';
import { crc32c } from '../crc32c.ts';
import { damaged, type Device, notRead, readDevice } from '../device.ts';

/** Layout and features: Linux, Documentation/filesystems/ext4, and fs/ext4/ext4.h (v6.12). */
const SUPERBLOCK_OFFSET = 1024;
const SUPERBLOCK_BYTES = 1024;
const MAGIC = 0xef53;

export const COMPAT = { hasJournal: 0x4, fastCommit: 0x400 } as const;
export const INCOMPAT = {
  compression: 0x1,
  fileType: 0x2,
  recover: 0x4,
  journalDevice: 0x8,
  metaBlockGroups: 0x10,
  extents: 0x40,
  bits64: 0x80,
  multiMount: 0x100,
  flexGroups: 0x200,
  attributeInodes: 0x400,
  directoryData: 0x1000,
  checksumSeed: 0x2000,
  largeDirectories: 0x4000,
  inlineData: 0x8000,
  encrypt: 0x1_0000,
  caseFold: 0x2_0000,
} as const;
/** A file system in use is marked as not clean only if it has no journal. */
export const STATE = { clean: 0x1, hasErrors: 0x2 } as const;
export const RO_COMPAT = { sparseSuper: 0x1, metadataChecksums: 0x400 } as const;

/** Features that prevent reading. Case-insensitive names are readable: compared exactly. */
const REFUSED: readonly (readonly [number, string])[] = [
  [INCOMPAT.compression, 'its files are compressed (e2compr)'],
  [INCOMPAT.journalDevice, 'it is only the journal of another file system'],
  [INCOMPAT.directoryData, "its directories hold Lustre's data"],
];
const KNOWN_INCOMPAT = Object.values(INCOMPAT).reduce<number>((all, each) => all | each, 0);

export interface Superblock {
  readonly blockBytes: number;
  readonly blocks: number;
  readonly inodes: number;
  readonly inodeBytes: number;
  readonly inodesPerGroup: number;
  readonly blocksPerGroup: number;
  readonly firstDataBlock: number;
  readonly groups: number;
  readonly descriptorBytes: number;
  readonly firstMetaGroup: number;
  readonly compat: number;
  readonly incompat: number;
  readonly roCompat: number;
  readonly uuid: Buffer;
  readonly journalInode: number;
  /** Seed of metadata checksums; undefined if there are none. */
  readonly checksumSeed: number | undefined;
  /** State recorded by Linux: bits of {@link STATE}. */
  readonly state: number;
}

/** Whether a device begins like ext2, ext3 or ext4. */
export function isExt4(start: Uint8Array): boolean {
  const bytes = asBuffer(start);
  return bytes.length >= SUPERBLOCK_OFFSET + 64 && bytes.readUInt16LE(0x438) === MAGIC;
}

/** Throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ` with the feature, and errors of the device. */
export async function loadSuperblock(device: Device, signal: AbortSignal): Promise<Superblock> {
  const what = 'its superblock';
  const range = { offset: SUPERBLOCK_OFFSET, lengthBytes: SUPERBLOCK_BYTES, what };
  return parseSuperblock(asBuffer(await readDevice(device, range, signal)), device.sizeBytes);
}

export function parseSuperblock(bytes: Buffer, deviceBytes: number): Superblock {
  if (bytes.readUInt16LE(0x38) !== MAGIC) throw damaged('it has no superblock of ext4');
  const isDynamic = bytes.readUInt32LE(0x4c) >= 1;
  const compat = isDynamic ? bytes.readUInt32LE(0x5c) : 0;
  const incompat = isDynamic ? bytes.readUInt32LE(0x60) : 0;
  const roCompat = isDynamic ? bytes.readUInt32LE(0x64) : 0;
  assertReadable(incompat);
  const uuid = Buffer.from(bytes.subarray(0x68, 0x78));
  const hasChecksums = (roCompat & RO_COMPAT.metadataChecksums) !== 0;
  if (hasChecksums && crc32c(0xffff_ffff, bytes.subarray(0, 0x3fc)) !== bytes.readUInt32LE(0x3fc)) {
    throw damaged('the checksum of its superblock is wrong');
  }
  const hasSeed = (incompat & INCOMPAT.checksumSeed) !== 0;
  const seed = hasSeed ? bytes.readUInt32LE(0x270) : crc32c(0xffff_ffff, uuid);
  const is64 = (incompat & INCOMPAT.bits64) !== 0;
  const superblock = {
    compat,
    incompat,
    roCompat,
    uuid,
    blockBytes: 1024 * 2 ** bytes.readUInt32LE(0x18),
    blocks: bytes.readUInt32LE(0x4) + (is64 ? bytes.readUInt32LE(0x150) * 2 ** 32 : 0),
    inodes: bytes.readUInt32LE(0x0),
    inodeBytes: isDynamic ? bytes.readUInt16LE(0x58) : 128,
    inodesPerGroup: bytes.readUInt32LE(0x28),
    blocksPerGroup: bytes.readUInt32LE(0x20),
    firstDataBlock: bytes.readUInt32LE(0x14),
    descriptorBytes: is64 ? bytes.readUInt16LE(0xfe) : 32,
    firstMetaGroup: bytes.readUInt32LE(0x104),
    journalInode: bytes.readUInt32LE(0xe0),
    checksumSeed: hasChecksums ? seed : undefined,
    state: bytes.readUInt16LE(0x3a),
  };
  assertPossible(superblock, deviceBytes);
  const { blocks, firstDataBlock, blocksPerGroup } = superblock;
  const groups = Math.ceil((blocks - firstDataBlock) / blocksPerGroup);
  if (groups * superblock.inodesPerGroup < superblock.inodes) {
    throw damaged(`it has ${superblock.inodes} inodes, and room for fewer`);
  }
  return { ...superblock, groups };
}

function assertReadable(incompat: number): void {
  const refused = REFUSED.find(([feature]) => (incompat & feature) !== 0);
  if (refused) throw notRead(`this file system is not read here: ${refused[1]}`);
  const unknown = incompat & ~KNOWN_INCOMPAT;
  if (unknown === 0) return;
  const text = `it has features that are not known here (incompat 0x${(unknown >>> 0).toString(16)})`;
  throw notRead(`this file system is not read here: ${text}`);
}

/** The largest sizes that Linux supports. */
const BLOCK_BYTES_MAX = 64 << 10;
const DESCRIPTOR_BYTES_MAX = 1024;

/** Ensures that all values computed from these numbers stay small, and within the device. */
function assertPossible(superblock: Omit<Superblock, 'groups'>, deviceBytes: number): void {
  const { blockBytes, blocks, inodeBytes, inodesPerGroup, blocksPerGroup } = superblock;
  const { inodes, firstDataBlock, descriptorBytes } = superblock;
  const fails = (what: string): never => {
    throw damaged(`its superblock says ${what}`);
  };
  const isPower = (value: number): boolean => value > 0 && (value & (value - 1)) === 0;
  if (blockBytes > BLOCK_BYTES_MAX) fails(`that a block has ${blockBytes} bytes`);
  if (!isPower(inodeBytes) || inodeBytes < 128 || inodeBytes > blockBytes) {
    fails(`that an inode has ${inodeBytes} bytes`);
  }
  if (blocks * blockBytes > deviceBytes) {
    fails(
      `that it has ${blocks} blocks of ${blockBytes} bytes, and the device has ${deviceBytes} bytes`,
    );
  }
  if (inodes === 0 || inodesPerGroup === 0 || inodes * inodeBytes > deviceBytes) {
    fails(`that it has ${inodes} inodes, ${inodesPerGroup} a group`);
  }
  if (blocksPerGroup === 0 || blocksPerGroup > 8 * BLOCK_BYTES_MAX * blockBytes) {
    fails(`that a group has ${blocksPerGroup} blocks`);
  }
  if (firstDataBlock >= blocks) fails(`that its data begin at block ${firstDataBlock}`);
  if (!isPower(descriptorBytes) || descriptorBytes < 32 || descriptorBytes > DESCRIPTOR_BYTES_MAX) {
    fails(`that a descriptor has ${descriptorBytes} bytes`);
  }
}
