import type { Nanoseconds } from '../../base/index.ts';
import { crc32c, crc32cOf } from '../crc32c.ts';
import { damaged } from '../device.ts';
import type { Superblock } from './superblock.ts';

/** Linux, fs/ext4/ext4.h (v6.12). */
export const FLAGS = { encrypted: 0x800, extents: 0x8_0000, inlineData: 0x1000_0000 } as const;

export type InodeType = 'f' | 'd' | 's' | 'p' | 'c' | 'b' | 'S';
const TYPES: Readonly<Record<number, InodeType>> = {
  0o10: 'f',
  0o04: 'd',
  0o12: 's',
  0o01: 'p',
  0o02: 'c',
  0o06: 'b',
  0o14: 'S',
};

/** A file, a directory, or another object that a directory names. */
export interface Inode {
  readonly number: number;
  readonly type: InodeType;
  /** Permission bits, with setuid, setgid and the sticky bit. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly size: number;
  readonly mtimeNs: Nanoseconds;
  readonly flags: number;
  /** 60 bytes: the positions of its blocks, or inline data. */
  readonly map: Buffer;
  /** Inline data after the map. */
  readonly inlineRest: Buffer;
  /** Seed of its blocks' checksums; undefined if there are none. */
  readonly checksumSeed: number | undefined;
}

const SIGN_BIT = 2 ** 31;
/** Blocks of a file are numbered with 32 bits. */
const FILE_BLOCKS_MAX = 2 ** 32;

/** Throws `DEVICE_DAMAGED`. Takes ownership of `bytes`: the inode keeps parts of them. */
export function parseInode(bytes: Buffer, number: number, superblock: Superblock): Inode {
  const mode = bytes.readUInt16LE(0);
  const flags = bytes.readUInt32LE(0x20);
  const checksumSeed = seedOf(bytes, number, superblock);
  const type = TYPES[mode >> 12];
  if (type === undefined || bytes.readUInt16LE(0x1a) === 0) {
    throw damaged(`inode ${number} is named, and is not in use`);
  }
  const size = bytes.readUInt32LE(0x4) + (type === 's' ? 0 : bytes.readUInt32LE(0x6c) * 2 ** 32);
  if (size > FILE_BLOCKS_MAX * superblock.blockBytes) {
    throw damaged(`inode ${number} has ${size} bytes, more than a file can have`);
  }
  return {
    number,
    type,
    flags,
    size,
    checksumSeed,
    mode: mode & 0o7777,
    uid: bytes.readUInt16LE(0x2) + bytes.readUInt16LE(0x78) * 2 ** 16,
    gid: bytes.readUInt16LE(0x18) + bytes.readUInt16LE(0x7a) * 2 ** 16,
    mtimeNs: mtimeOf(bytes),
    map: bytes.subarray(0x28, 0x64),
    inlineRest: (flags & FLAGS.inlineData) === 0 ? NOTHING : inlineRestOf(bytes),
  };
}

const NOTHING = Buffer.alloc(0);

/** Bytes after the first 128 that the inode itself uses. */
function extraBytesOf(bytes: Buffer): number {
  return bytes.length > 128 ? Math.min(bytes.readUInt16LE(0x80), bytes.length - 128) : 0;
}

function mtimeOf(bytes: Buffer): Nanoseconds {
  const seconds = bytes.readInt32LE(0x10);
  if (extraBytesOf(bytes) < 12) return BigInt(seconds) * 1_000_000_000n;
  const extra = bytes.readUInt32LE(0x88);
  return BigInt(seconds + (extra & 3) * 2 * SIGN_BIT) * 1_000_000_000n + BigInt(extra >>> 2);
}

/** Throws `DEVICE_DAMAGED` if the checksum of the inode is wrong. */
function seedOf(bytes: Buffer, number: number, { checksumSeed }: Superblock): number | undefined {
  if (checksumSeed === undefined) return undefined;
  const seed = crc32cOf(crc32cOf(checksumSeed, number), bytes.readUInt32LE(0x64));
  const hasHigh = extraBytesOf(bytes) >= 4;
  const copy = Buffer.from(bytes);
  copy.writeUInt16LE(0, 0x7c);
  if (hasHigh) copy.writeUInt16LE(0, 0x82);
  const sum = crc32c(seed, copy);
  const stored = bytes.readUInt16LE(0x7c) + (hasHigh ? bytes.readUInt16LE(0x82) * 2 ** 16 : 0);
  // An inode that was never used has no checksum.
  const isUnused = bytes.readUInt16LE(0x1a) === 0 && stored === 0;
  if (isUnused || (hasHigh ? sum : sum & 0xffff) === stored) return seed;
  throw damaged(`the checksum of inode ${number} is wrong`);
}

const ATTRIBUTES_MAGIC = 0xea02_0000;
/** The attribute "system.data". Linux, fs/ext4/xattr.h: EXT4_XATTR_INDEX_SYSTEM. */
const SYSTEM_INDEX = 7;
const DATA_NAME = 'data';
const ENTRY_BYTES = 16;

/** Inline data that does not fit into the map, stored in the inode as an attribute. */
function inlineRestOf(bytes: Buffer): Buffer {
  const start = 128 + extraBytesOf(bytes);
  if (start + 4 > bytes.length || bytes.readUInt32LE(start) !== ATTRIBUTES_MAGIC) return NOTHING;
  const entries = bytes.subarray(start + 4);
  for (let at = 0; at + 4 <= entries.length && entries.readUInt32LE(at) !== 0;) {
    const nameBytes = entries.readUInt8(at);
    if (at + ENTRY_BYTES + nameBytes > entries.length) break;
    const name = entries.toString('latin1', at + ENTRY_BYTES, at + ENTRY_BYTES + nameBytes);
    if (entries.readUInt8(at + 1) === SYSTEM_INDEX && name === DATA_NAME) {
      const offset = entries.readUInt16LE(at + 2);
      const length = entries.readUInt32LE(at + 8);
      if (offset + length > entries.length) break;
      return entries.subarray(offset, offset + length);
    }
    at += ENTRY_BYTES + Math.ceil(nameBytes / 4) * 4;
  }
  return NOTHING;
}
