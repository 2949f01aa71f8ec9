import { asBuffer, type CodedError } from '../../base/index.ts';
import { crc32c, crc32cOf } from '../crc32c.ts';
import { damaged, type Device, notRead } from '../device.ts';
import { Blocks, type JournaledBlock, type JournaledBlocks } from './blocks.ts';
import { runsOf } from './block-map.ts';
import type { Inode } from './inode.ts';
import type { Superblock } from './superblock.ts';

/** Linux, include/linux/jbd2.h (v6.12). Everything is big-endian. */
const MAGIC = 0xc03b_3998;
const TYPES = { descriptor: 1, commit: 2, superblockV1: 3, superblockV2: 4, revoke: 5 } as const;
const INCOMPAT = {
  revoke: 0x1,
  bits64: 0x2,
  asyncCommit: 0x4,
  csumV2: 0x8,
  csumV3: 0x10,
  fast: 0x20,
};
const KNOWN_INCOMPAT = Object.values(INCOMPAT).reduce((all, each) => all | each, 0);
const TAG = { escaped: 0x1, sameUuid: 0x2, last: 0x8 } as const;
const HEADER_BYTES = 12;
const UUID_BYTES = 16;
/** Blocks at the end of the journal that Linux reserves for fast commits by default. */
const FAST_BLOCKS_DEFAULT = 256;

/** Larger journals are not read. Four times the largest that mke2fs creates by default. */
const JOURNAL_BLOCKS_MAX = 1 << 20;
/** Limit of replayed blocks, some 100 bytes each: mke2fs's largest default journal. */
const REPLAYED_MAX = 1 << 18;

export interface ReplayedJournal extends JournaledBlocks {
  /** Why the latest writes may be missing; undefined if they are not. */
  readonly doubt: string | undefined;
}

interface Journal {
  readonly blocks: Blocks;
  /** Position of each block of the journal on the device. */
  readonly places: Float64Array;
  readonly first: number;
  /** After its last block. */
  readonly end: number;
  readonly start: number;
  readonly sequence: number;
  readonly incompat: number;
  /** Seed of its checksums; undefined if it has none. */
  readonly seed: number | undefined;
}

/**
 * Blocks with a newer version in the journal, as a mount would write them back. Writes nothing.
 * Skips transactions that were not committed. Throws `DEVICE_DAMAGED` and errors of the device.
 */
export async function replayJournal(
  device: Device,
  superblock: Superblock,
  { inode, signal }: { readonly inode: Inode; readonly signal: AbortSignal },
): Promise<ReplayedJournal> {
  const blocks = new Blocks(device, superblock);
  const journal = await openJournal(blocks, inode, signal);
  const replayed = new Map<number, JournaledBlock>();
  const check = checkOf(journal);
  if (journal.start === 0) return { blocks: replayed, check, doubt: undefined };
  let sequence = journal.sequence;
  let at = journal.start;
  let left = journal.end - journal.first;
  let pending = emptyTransaction();
  const next = (): number => {
    const now = at;
    at = at + 1 >= journal.end ? journal.first : at + 1;
    left--;
    return journal.places[now] as number;
  };
  while (left > 0) {
    signal.throwIfAborted();
    const place = next();
    const bytes = asBuffer(await blocks.read(place, 1, { what: 'its journal', signal }));
    if (bytes.readUInt32BE(0) !== MAGIC || bytes.readUInt32BE(8) !== sequence) break;
    const type = bytes.readUInt32BE(4);
    if (!hasRightChecksum(bytes, type, journal)) break;
    if (type === TYPES.descriptor) {
      for (const tag of tagsOf(bytes, journal)) {
        if (left <= 0) break;
        const { block, isEscaped, checksum, isHalf } = tag;
        pending.blocks.set(block, { place: next(), isEscaped, checksum, isHalf, sequence });
      }
      if (pending.blocks.size > REPLAYED_MAX) throw tooMany();
    } else if (type === TYPES.revoke) {
      // Keep the position, not the contents: a journal may have more revoke blocks than memory.
      pending.revokes.push(place);
    } else if (type === TYPES.commit) {
      for (const [block, newer] of pending.blocks) replayed.set(block, newer);
      if (replayed.size > REPLAYED_MAX) throw tooMany();
      // A freed block may have a new owner by now. If a later transaction writes it, it counts
      // again.
      for (const from of pending.revokes) {
        const what = 'its journal';
        const list = asBuffer(await blocks.read(from, 1, { what, signal }));
        for (const block of revokedOf(list, journal)) replayed.delete(block);
      }
      pending = emptyTransaction();
      sequence = (sequence + 1) >>> 0;
    } else break;
  }
  const isFast = (journal.incompat & INCOMPAT.fast) !== 0;
  const doubt = isFast
    ? 'its journal has fast commits, which are not read: what was written in the last seconds may be missing'
    : undefined;
  return { blocks: replayed, check, doubt };
}

const tooMany = (): CodedError =>
  notRead(
    `its journal has more than ${REPLAYED_MAX} blocks that are not written to their places yet, and only a mount shows what is in them`,
  );

interface Tag {
  readonly block: number;
  readonly isEscaped: boolean;
  readonly checksum: number;
  /** Whether only its low half is stored. */
  readonly isHalf: boolean;
}

const emptyTransaction = (): {
  readonly blocks: Map<number, JournaledBlock>;
  /** Blocks on the device with lists of freed blocks. */
  readonly revokes: number[];
} => ({ blocks: new Map(), revokes: [] });

async function openJournal(blocks: Blocks, inode: Inode, signal: AbortSignal): Promise<Journal> {
  const fails = (what: string): never => {
    throw damaged(`its journal: ${what}`);
  };
  const count = Math.floor(inode.size / blocks.blockBytes);
  if (inode.type !== 'f' || count === 0) fails('it has none, though it says so');
  if (count > JOURNAL_BLOCKS_MAX) fails(`${count} blocks are more than are read`);
  const places = new Float64Array(count);
  for await (const run of runsOf(inode, { blocks, signal })) {
    for (let at = 0; at < run.count; at++) places[run.first + at] = run.block + at;
  }
  const head = asBuffer(await blocks.read(places[0] as number, 1, { what: 'its journal', signal }));
  const version = head.readUInt32BE(4);
  const isNew = version === TYPES.superblockV2;
  if (head.readUInt32BE(0) !== MAGIC || (!isNew && version !== TYPES.superblockV1)) {
    fails('it has no superblock');
  }
  if (head.readUInt32BE(12) !== blocks.blockBytes) fails('its blocks have another size');
  const incompat = isNew ? head.readUInt32BE(40) : 0;
  const unknown = incompat & ~KNOWN_INCOMPAT;
  if (unknown !== 0) fails(`features that are not known here (0x${unknown.toString(16)})`);
  const hasSeed = (incompat & (INCOMPAT.csumV2 | INCOMPAT.csumV3)) !== 0;
  const fastBlocks = head.readUInt32BE(84) || FAST_BLOCKS_DEFAULT;
  const forFast = (incompat & INCOMPAT.fast) === 0 ? 0 : fastBlocks;
  const end = head.readUInt32BE(16) - forFast;
  const first = head.readUInt32BE(20);
  const start = head.readUInt32BE(28);
  if (first === 0 || first >= end || end > count)
    fails(`from block ${first} to ${end} of ${count}`);
  if (start !== 0 && (start < first || start >= end)) fails(`it begins at block ${start}`);
  return {
    blocks,
    places,
    first,
    end,
    start,
    incompat,
    sequence: head.readUInt32BE(24),
    seed: hasSeed ? crc32c(0xffff_ffff, head.subarray(48, 64)) : undefined,
  };
}

function hasRightChecksum(bytes: Buffer, type: number, { seed }: Journal): boolean {
  if (seed === undefined) return true;
  const at = type === TYPES.commit ? 16 : bytes.length - 4;
  const stored = bytes.readUInt32BE(at);
  const copy = Buffer.from(bytes);
  copy.writeUInt32BE(0, at);
  return crc32c(seed, copy) === stored;
}

function* tagsOf(bytes: Buffer, { incompat, seed }: Journal): Generator<Tag> {
  const is64 = (incompat & INCOMPAT.bits64) !== 0;
  const isV3 = (incompat & INCOMPAT.csumV3) !== 0;
  const isV2 = (incompat & INCOMPAT.csumV2) !== 0;
  const tagBytes = isV3 ? 16 : 8 + (is64 ? 4 : 0) + (isV2 ? 2 : 0);
  const end = bytes.length - (seed === undefined ? 0 : 4);
  for (let at = HEADER_BYTES; at + tagBytes <= end;) {
    const flags = isV3 ? bytes.readUInt32BE(at + 4) : bytes.readUInt16BE(at + 6);
    const high = is64 ? bytes.readUInt32BE(at + 8) : 0;
    yield {
      block: bytes.readUInt32BE(at) + high * 2 ** 32,
      isEscaped: (flags & TAG.escaped) !== 0,
      checksum: isV3 ? bytes.readUInt32BE(at + 12) : bytes.readUInt16BE(at + 4),
      isHalf: !isV3,
    };
    if ((flags & TAG.last) !== 0) return;
    at += tagBytes + ((flags & TAG.sameUuid) === 0 ? UUID_BYTES : 0);
  }
}

function* revokedOf(bytes: Buffer, { incompat }: Journal): Generator<number> {
  const is64 = (incompat & INCOMPAT.bits64) !== 0;
  const length = is64 ? 8 : 4;
  const end = Math.min(bytes.readUInt32BE(HEADER_BYTES), bytes.length);
  for (let at = HEADER_BYTES + 4; at + length <= end; at += length) {
    yield is64
      ? bytes.readUInt32BE(at) * 2 ** 32 + bytes.readUInt32BE(at + 4)
      : bytes.readUInt32BE(at);
  }
}

/** Runs when the block is read. */
const checkOf =
  ({ seed }: Journal): JournaledBlocks['check'] =>
  (block, { checksum, isHalf, sequence }, bytes) => {
    if (seed === undefined) return;
    const sum = crc32c(crc32cOf(seed, sequence, true), bytes);
    if ((isHalf ? sum & 0xffff : sum) === checksum) return;
    throw damaged(`the checksum of block ${block} in its journal is wrong`);
  };
