import { damaged, notRead } from '../device.ts';
import { type MapContext, runsOf } from './block-map.ts';
import { FLAGS, type Inode } from './inode.ts';

/** Bytes per read of a file. Our choice: a few reads for each content of a repository. */
const PIECE_BYTES = 1 << 20;
/** The bytes of holes. Callers must not write into it. */
const ZEROS = Buffer.alloc(PIECE_BYTES);
/** Linux: PATH_MAX. A link has at most one block. */
const LINK_BYTES_MAX = 64 << 10;

/**
 * The bytes of a file, or the stored bytes of a directory, in pieces. Reads one piece ahead. Holes
 * and unwritten blocks are zeros. Throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ` if the file is
 * encrypted, and errors of the device.
 */
export async function* bytesOf(
  inode: Inode,
  context: MapContext,
): AsyncGenerator<Uint8Array, void, void> {
  assertPlain(inode);
  if ((inode.flags & FLAGS.inlineData) !== 0) {
    if (inode.size > 0) yield inlineBytesOf(inode);
    return;
  }
  let ahead: Promise<Uint8Array> | undefined;
  for await (const { at, bytes, zeros } of piecesOf(inode, context)) {
    const left = inode.size - at;
    const next = bytes
      ? bytes().then((read) => read.subarray(0, left))
      : Promise.resolve(ZEROS.subarray(0, Math.min(zeros, left)));
    next.catch(() => undefined);
    if (ahead) yield await ahead;
    ahead = next;
  }
  if (ahead) yield await ahead;
}

interface Piece {
  readonly at: number;
  readonly bytes: (() => Promise<Uint8Array>) | undefined;
  readonly zeros: number;
}

async function* piecesOf(inode: Inode, context: MapContext): AsyncGenerator<Piece, void, void> {
  const { blocks, signal } = context;
  const { blockBytes } = blocks;
  const perPiece = Math.max(1, Math.floor(PIECE_BYTES / blockBytes));
  const what = `a part of inode ${inode.number}`;
  let done = 0;
  function* zerosTo(end: number): Generator<Piece, void, void> {
    for (; done < end; done += PIECE_BYTES) {
      signal.throwIfAborted();
      yield { at: done, bytes: undefined, zeros: Math.min(PIECE_BYTES, end - done) };
    }
    done = end;
  }
  for await (const { first, block, count } of runsOf(inode, context)) {
    yield* zerosTo(first * blockBytes);
    for (let at = 0; at < count; at += perPiece) {
      const length = Math.min(perPiece, count - at);
      const bytes = (): Promise<Uint8Array> => blocks.read(block + at, length, { what, signal });
      yield { at: done, bytes, zeros: 0 };
      done += length * blockBytes;
    }
  }
  yield* zerosTo(inode.size);
}

/**
 * The target of a symbolic link. Throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ` and errors of the
 * device.
 */
export async function linkOf(inode: Inode, context: MapContext): Promise<Buffer> {
  assertPlain(inode);
  const { size, map, flags, number } = inode;
  if (size > LINK_BYTES_MAX) throw damaged(`the symbolic link ${number} has ${size} bytes`);
  const isInMap = size < map.length && (flags & (FLAGS.extents | FLAGS.inlineData)) === 0;
  if (isInMap) return map.subarray(0, size);
  const parts: Uint8Array[] = [];
  for await (const piece of bytesOf(inode, context)) parts.push(piece);
  return Buffer.concat(parts);
}

/** Data stored in the inode itself. Throws `DEVICE_DAMAGED`. */
export function inlineBytesOf({ map, inlineRest, size, number }: Inode): Buffer {
  const bytes = Buffer.concat([map, inlineRest]);
  if (size <= bytes.length) return bytes.subarray(0, size);
  throw damaged(`inode ${number} has ${size} bytes, and holds ${bytes.length}`);
}

export function assertPlain({ flags }: Inode): void {
  if ((flags & FLAGS.encrypted) === 0) return;
  throw notRead('it is encrypted by fscrypt, and only a mount with its key shows it');
}
