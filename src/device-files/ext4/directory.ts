import { asBuffer } from '../../base/index.ts';
import { crc32c } from '../crc32c.ts';
import { damaged } from '../device.ts';
import { type MapContext, runsOf } from './block-map.ts';
import { assertPlain, inlineBytesOf } from './contents.ts';
import { FLAGS, type Inode } from './inode.ts';

/** A name in a directory, as stored: any bytes. */
export interface NamedInode {
  readonly name: Buffer;
  readonly inode: number;
}

/** Linux, fs/ext4/ext4.h (v6.12). */
const ENTRY_BYTES = 8;
const DOT = Buffer.from('.');
const DOTS = Buffer.from('..');
const MAP_BYTES = 60;
/** A pseudo-entry at the end of a block with its checksum. */
const TAIL_BYTES = 12;
const TAIL_TYPE = 0xde;
/** Bytes of blocks read at once. Our choice. */
const READ_BYTES = 256 << 10;

export interface DirectoryContext extends MapContext {
  /** Whether entries store the type of their inode. Then the length of the name has one byte. */
  readonly hasTypes: boolean;
  /** Number of inodes of the file system. */
  readonly inodes: number;
}

/**
 * Batches of names in stored order, without "." and "..". Index blocks look empty. `onParent` gets
 * the inode of ".." before the first name. Throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ` if the
 * directory is encrypted, and errors of the device.
 */
export async function* namesIn(
  inode: Inode,
  context: DirectoryContext,
  onParent: (inode: number) => void = () => undefined,
): AsyncGenerator<readonly NamedInode[], void, void> {
  assertPlain(inode);
  let hasParent = false;
  const tell = (parent: number): void => {
    if (!hasParent) onParent(parent);
    hasParent = true;
  };
  if ((inode.flags & FLAGS.inlineData) !== 0) {
    const bytes = inlineBytesOf(inode);
    if (bytes.length < 4) throw damaged(`directory ${inode.number} is empty`);
    tell(bytes.readUInt32LE(0));
    yield entriesOf(bytes.subarray(4, MAP_BYTES), inode, context, tell);
    yield entriesOf(bytes.subarray(MAP_BYTES), inode, context, tell);
    return;
  }
  const { blocks, signal } = context;
  const { blockBytes } = blocks;
  const perRead = Math.max(1, Math.floor(READ_BYTES / blockBytes));
  let next = 0;
  for await (const { first, block, count } of runsOf(inode, context)) {
    if (first !== next) break;
    for (let at = 0; at < count; at += perRead) {
      const length = Math.min(perRead, count - at);
      const what = `directory ${inode.number}`;
      const bytes = asBuffer(await blocks.read(block + at, length, { what, signal }));
      const names: NamedInode[] = [];
      for (let from = 0; from < bytes.length; from += blockBytes) {
        const one = bytes.subarray(from, from + blockBytes);
        assertChecksum(one, inode);
        names.push(...entriesOf(one, inode, context, tell));
      }
      yield names;
    }
    next = first + count;
  }
  // A hole is damage: the names after it would be skipped silently.
  if (next * blockBytes < inode.size || next === 0) {
    throw damaged(`directory ${inode.number} lacks block ${next}`);
  }
}

function entriesOf(
  bytes: Buffer,
  { number }: Inode,
  { hasTypes, inodes }: DirectoryContext,
  onParent: (inode: number) => void,
): NamedInode[] {
  const names: NamedInode[] = [];
  for (let at = 0; at < bytes.length;) {
    const fails = (what: string): never => {
      throw damaged(`directory ${number} has ${what}`);
    };
    if (at + ENTRY_BYTES > bytes.length) fails('an entry that is cut');
    const length = lengthOf(bytes.readUInt16LE(at + 4), bytes.length);
    const nameBytes = hasTypes ? bytes.readUInt8(at + 6) : bytes.readUInt16LE(at + 6);
    if (length < ENTRY_BYTES + nameBytes || length % 4 !== 0 || at + length > bytes.length) {
      fails(`an entry of ${length} bytes with a name of ${nameBytes}`);
    }
    const inode = bytes.readUInt32LE(at);
    const name = bytes.subarray(at + ENTRY_BYTES, at + ENTRY_BYTES + nameBytes);
    at += length;
    if (inode === 0 || name.equals(DOT)) continue;
    if (inode > inodes) fails(`a name that leads to inode ${inode}`);
    if (name.equals(DOTS)) onParent(inode);
    else names.push({ name: Buffer.from(name), inode });
  }
  return names;
}

/** Decodes the length of an entry. An entry that fills a block of 64 KiB exceeds 16 bits. */
function lengthOf(stored: number, blockBytes: number): number {
  if (stored === 0 || stored === 0xffff) return blockBytes;
  return (stored & 0xfffc) | ((stored & 3) << 16);
}

function assertChecksum(block: Buffer, { checksumSeed, number }: Inode): void {
  const tail = block.length - TAIL_BYTES;
  const hasTail =
    block.readUInt32LE(tail) === 0 &&
    block.readUInt16LE(tail + 4) === TAIL_BYTES &&
    block.readUInt16LE(tail + 6) === TAIL_TYPE << 8;
  if (checksumSeed === undefined || !hasTail) return;
  if (crc32c(checksumSeed, block.subarray(0, tail)) === block.readUInt32LE(tail + 8)) return;
  throw damaged(`the checksum of directory ${number} is wrong`);
}
