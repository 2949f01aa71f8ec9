import { asBuffer } from '../../base/index.ts';
import { crc32c } from '../crc32c.ts';
import { damaged } from '../device.ts';
import type { Blocks } from './blocks.ts';
import { FLAGS, type Inode } from './inode.ts';

/** Blocks of a file that are contiguous on the device. */
export interface Run {
  /** Number within the file. */
  readonly first: number;
  /** Number on the device. */
  readonly block: number;
  readonly count: number;
}

export interface MapContext {
  readonly blocks: Blocks;
  readonly signal: AbortSignal;
}

/**
 * The written blocks of a file, in order. Missing and unwritten blocks are skipped: they read as
 * zeros. Each block of the map is read once and must advance the position, so a loop is damage.
 * Throws `DEVICE_DAMAGED` and errors of the device.
 */
export async function* runsOf(inode: Inode, context: MapContext): AsyncGenerator<Run, void, void> {
  const end = Math.ceil(inode.size / context.blocks.blockBytes);
  const runs =
    (inode.flags & FLAGS.extents) === 0
      ? mappedRuns(inode, end, context)
      : extentRuns(inode.map, { inode, from: 0, until: 2 ** 32, depth: undefined }, context);
  for await (const run of runs) {
    context.signal.throwIfAborted();
    if (run.first >= end) return;
    if (run.block + run.count > context.blocks.count) {
      throw damaged(`a block of inode ${inode.number} is ${run.block}, beyond the end`);
    }
    yield { ...run, count: Math.min(run.count, end - run.first) };
  }
}

/** Linux, fs/ext4/ext4_extents.h (v6.12). */
const EXTENT_MAGIC = 0xf30a;
const EXTENT_BYTES = 12;
const DEPTH_MAX = 5;
/** A greater length marks an extent that was never written. */
const WRITTEN_MAX = 1 << 15;

interface Node {
  readonly inode: Inode;
  /** Range of the file's blocks that the node may describe. */
  readonly from: number;
  readonly until: number;
  /** Undefined for the root, which stores it itself. */
  readonly depth: number | undefined;
}

async function* extentRuns(
  bytes: Buffer,
  { inode, from, until, depth: expected }: Node,
  context: MapContext,
): AsyncGenerator<Run, void, void> {
  const fails = (what: string): never => {
    throw damaged(`the extents of inode ${inode.number}: ${what}`);
  };
  const count = bytes.readUInt16LE(2);
  const depth = bytes.readUInt16LE(6);
  if (bytes.readUInt16LE(0) !== EXTENT_MAGIC) fails('a block of them is none');
  if (depth > DEPTH_MAX || (expected !== undefined && depth !== expected)) fails(`depth ${depth}`);
  if ((count + 1) * EXTENT_BYTES > bytes.length) fails(`${count} in one block`);
  // Each block below the root describes some blocks of the file, so no tree is larger than its
  // file.
  if (expected !== undefined && count === 0) fails('a block of them is empty');
  let next = from;
  for (let at = EXTENT_BYTES; at < (count + 1) * EXTENT_BYTES; at += EXTENT_BYTES) {
    const first = bytes.readUInt32LE(at);
    if (first < next || first >= until) fails(`block ${first} is not in its place`);
    if (depth === 0) {
      const length = bytes.readUInt16LE(at + 4);
      const blocks = length > WRITTEN_MAX ? length - WRITTEN_MAX : length;
      if (blocks === 0 || first + blocks > until) fails(`block ${first} and ${blocks} more`);
      next = first + blocks;
      const block = bytes.readUInt32LE(at + 8) + bytes.readUInt16LE(at + 6) * 2 ** 32;
      if (length <= WRITTEN_MAX) yield { first, block, count: blocks };
      continue;
    }
    const isLast = at === count * EXTENT_BYTES;
    const end = isLast ? until : bytes.readUInt32LE(at + EXTENT_BYTES);
    if (end <= first) fails(`block ${first} is not in its place`);
    next = end;
    const block = bytes.readUInt32LE(at + 4) + bytes.readUInt16LE(at + 8) * 2 ** 32;
    const { signal, blocks } = context;
    signal.throwIfAborted();
    const below = asBuffer(await blocks.read(block, 1, { what: 'a block of extents', signal }));
    assertChecksum(below, inode);
    const node = { inode, from: first, until: end, depth: depth - 1 };
    yield* extentRuns(below, node, context);
  }
}

function assertChecksum(bytes: Buffer, { checksumSeed, number }: Inode): void {
  const at = EXTENT_BYTES * (bytes.readUInt16LE(4) + 1);
  if (checksumSeed === undefined || at + 4 > bytes.length) return;
  if (crc32c(checksumSeed, bytes.subarray(0, at)) === bytes.readUInt32LE(at)) return;
  throw damaged(`the checksum of extents of inode ${number} is wrong`);
}

const DIRECT_BLOCKS = 12;

/** The map of ext2 and ext3: 12 blocks, then a single, a double and a triple indirect block. */
async function* mappedRuns(
  { map, number }: Inode,
  end: number,
  context: MapContext,
): AsyncGenerator<Run, void, void> {
  let run: Run | undefined;
  for await (const [first, block] of mappedBlocks(map, { end, number }, context)) {
    if (run && first === run.first + run.count && block === run.block + run.count) {
      run = { ...run, count: run.count + 1 };
      if (run.count < RUN_MAX) continue;
      yield run;
      run = undefined;
      continue;
    }
    if (run) yield run;
    run = { first, block, count: 1 };
  }
  if (run) yield run;
}

/** Bounds a run, so that a long file's first bytes come before its whole map is read. */
const RUN_MAX = 1024;

async function* mappedBlocks(
  map: Buffer,
  { end, number }: { readonly end: number; readonly number: number },
  context: MapContext,
): AsyncGenerator<readonly [number, number], void, void> {
  const perBlock = context.blocks.blockBytes / 4;
  let first = 0;
  for (let at = 0; at < map.length / 4 && first < end; at++) {
    const block = map.readUInt32LE(at * 4);
    const depth = Math.max(0, at - DIRECT_BLOCKS + 1);
    if (block !== 0) yield* blocksBelow(block, { depth, first, end, number }, context);
    first += perBlock ** depth;
  }
}

async function* blocksBelow(
  block: number,
  place: {
    readonly depth: number;
    readonly first: number;
    readonly end: number;
    readonly number: number;
  },
  context: MapContext,
): AsyncGenerator<readonly [number, number], void, void> {
  const { depth, end, number } = place;
  let { first } = place;
  if (depth === 0) {
    yield [first, block];
    return;
  }
  const { blocks, signal } = context;
  signal.throwIfAborted();
  const what = `the block map of inode ${number}`;
  const list = asBuffer(await blocks.read(block, 1, { what, signal }));
  const step = (blocks.blockBytes / 4) ** (depth - 1);
  for (let at = 0; at < list.length && first < end; at += 4, first += step) {
    const below = list.readUInt32LE(at);
    if (below !== 0) yield* blocksBelow(below, { depth: depth - 1, first, end, number }, context);
  }
}
