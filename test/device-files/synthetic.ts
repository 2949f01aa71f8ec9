import type { Device } from '../../src/device-files/index.ts';

const BLOCK = 4096;
const INODE_BYTES = 128;
const TABLE_BLOCK = 2;
/** Behind the table of inodes. */
const DATA_BLOCK = 10;
const NUMBERS = BLOCK / 4;

/**
 * An ext2 file system of one group. Tests write each block, including contents that only an
 * attacker would write.
 */
export class SyntheticImage {
  readonly bytes: Buffer;
  #next = DATA_BLOCK;

  constructor(blocks: number, { inodes = 256, journalInode = 0 } = {}) {
    this.bytes = Buffer.alloc(blocks * BLOCK);
    const superblock = this.bytes.subarray(1024);
    superblock.writeUInt32LE(inodes, 0);
    superblock.writeUInt32LE(blocks, 4);
    superblock.writeUInt32LE(2, 0x18);
    superblock.writeUInt32LE(32_768, 0x20);
    superblock.writeUInt32LE(inodes, 0x28);
    superblock.writeUInt16LE(0xef53, 0x38);
    superblock.writeUInt32LE(1, 0x4c);
    superblock.writeUInt16LE(INODE_BYTES, 0x58);
    superblock.writeUInt32LE(journalInode === 0 ? 0 : 0x4, 0x5c);
    superblock.writeUInt32LE(journalInode === 0 ? 0x2 : 0x6, 0x60);
    superblock.writeUInt32LE(journalInode, 0xe0);
    this.bytes.writeUInt32LE(TABLE_BLOCK, BLOCK + 8);
    this.#next = TABLE_BLOCK + Math.ceil((inodes * INODE_BYTES) / BLOCK);
  }

  /** Its number. */
  addBlock(fill: (block: Buffer) => void): number {
    const number = this.#next++;
    fill(this.bytes.subarray(number * BLOCK, (number + 1) * BLOCK));
    return number;
  }

  /** Adds a block with names, filled to its end. */
  addNames(names: readonly (readonly [string, number])[]): number {
    return this.addBlock((block) => {
      let at = 0;
      for (const [index, [name, inode]] of names.entries()) {
        const length = 8 + Math.ceil(Buffer.byteLength(name) / 4) * 4;
        block.writeUInt32LE(inode, at);
        block.writeUInt16LE(index === names.length - 1 ? BLOCK - at : length, at + 4);
        block.writeUInt8(Buffer.byteLength(name), at + 6);
        block.write(name, at + 8);
        at += length;
      }
    });
  }

  setInode(number: number, mode: number, map: readonly number[], sizeBytes: number): void {
    const at = TABLE_BLOCK * BLOCK + (number - 1) * INODE_BYTES;
    const inode = this.bytes.subarray(at, at + INODE_BYTES);
    inode.writeUInt16LE(mode, 0);
    inode.writeUInt32LE(sizeBytes % 2 ** 32, 4);
    inode.writeUInt16LE(1, 0x1a);
    inode.writeUInt32LE(Math.floor(sizeBytes / 2 ** 32), 0x6c);
    for (const [index, block] of map.entries()) inode.writeUInt32LE(block, 0x28 + index * 4);
  }

  /** Numbers of blocks for an inode: `first`, and then one block over and over, a billion times. */
  repeated(first: number, then: number): number[] {
    const numbers = (of: number): number =>
      this.addBlock((block) => {
        for (let at = 0; at < NUMBERS; at++) block.writeUInt32LE(of, at * 4);
      });
    const once = numbers(then);
    const twice = numbers(once);
    return [first, ...new Array<number>(11).fill(then), once, twice, numbers(twice)];
  }

  /** Read data is in memory, like data from a repository. */
  get device(): Device {
    const { bytes } = this;
    return {
      sizeBytes: bytes.length,
      read: (offset, lengthBytes) => Promise.resolve(bytes.subarray(offset, offset + lengthBytes)),
    };
  }
}

export const BLOCK_BYTES = BLOCK;
