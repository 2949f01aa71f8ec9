import { CodedError } from '../../base/index.ts';
import { decompressContent } from '../../codec/index.ts';
import type { ContentId } from '../index/content-id.ts';
import type { ContentManager } from '../content/content-manager.ts';
import { endOf, type IndirectEntry, IndirectDecoder, objectLength } from './indirect.ts';
import { indexObjectOf, type ObjectId, parseObjectId } from './object-id.ts';

interface ReadOptions {
  signal?: AbortSignal | undefined;
}

/** Maximum metadata object. A longer object is damaged or an attack. Kopia has no limit. */
const WHOLE_BYTES_MAX = 2 ** 31;
/** Maximum decompressed content with index version 1: the largest splitter's chunk. */
const CHUNK_BYTES_MAX = 16 << 20;

/** Bytes of a list parsed at once. Entries take several times their text. Our choice. */
const LIST_BYTES = 64 << 10;

/** A content of an object, in stream order, repeated `count` times. */
export interface ObjectPiece {
  readonly start: number;
  readonly length: number;
  readonly count: number;
  readonly contentId: ContentId;
  /** The content includes its own compression header (`Z` objects). */
  readonly compressed: boolean;
}

/** The contents that make up an object. Throws `BAD_OBJECT`, `CONTENT_NOT_FOUND`. */
export async function listPieces(
  contents: ContentManager,
  id: ObjectId,
  options: ReadOptions = {},
): Promise<ObjectPiece[]> {
  const parsed = parseObjectId(id);
  if (parsed.indirections === 0) {
    const length = parsed.compressed
      ? (await readObject(contents, id, options)).length
      : contents.findOrThrow(parsed.contentId).originalLength;
    const { contentId, compressed } = parsed;
    return [{ start: 0, length, count: 1, contentId, compressed }];
  }
  const pieces: ObjectPiece[] = [];
  for (const entry of await readIndirect(contents, id, options)) {
    const child = parseObjectId(entry.id);
    const below: ObjectPiece[] =
      child.indirections > 0 || !child.compressed
        ? await listPieces(contents, entry.id, options)
        : [{ ...entry, start: 0, count: 1, contentId: child.contentId, compressed: true }];
    const length = objectLength(below);
    if (length !== entry.length) {
      const text = `object ${id} is damaged: its piece at ${entry.start} has ${length} bytes, not ${entry.length}`;
      throw new CodedError('BAD_OBJECT', text);
    }
    const [only] = below;
    if (only && below.length === 1 && only.count === 1) {
      pieces.push({ ...only, start: entry.start, count: entry.count });
      continue;
    }
    for (let i = 0; i < entry.count; i++) {
      const start = entry.start + i * entry.length;
      for (const piece of below) pieces.push({ ...piece, start: start + piece.start });
    }
  }
  return pieces;
}

/**
 * {@link listPieces} in parts, for objects of any length. Does not look into the index: missing
 * contents fail on their read, and lengths come from the lists. `size` is the length of the whole
 * object. Throws `BAD_OBJECT`.
 */
export async function* streamPieces(
  contents: ContentManager,
  { objectId, size }: { readonly objectId: ObjectId; readonly size: number },
  options: ReadOptions = {},
): AsyncGenerator<ObjectPiece[]> {
  const { indirections, contentId, compressed } = parseObjectId(objectId);
  if (indirections === 0) {
    yield [{ start: 0, length: size, count: 1, contentId, compressed }];
    return;
  }
  let end = 0;
  for await (const entries of streamIndirect(contents, objectId, options)) {
    end = objectLength(entries);
    for await (const pieces of piecesOf(contents, entries, options)) yield pieces;
  }
  if (end === size) return;
  const text = `object ${objectId} has ${end} bytes, but the snapshot says ${size}: restore it from another snapshot`;
  throw new CodedError('BAD_OBJECT', text);
}

/** A list entry may be an object with its own list. */
async function* piecesOf(
  contents: ContentManager,
  entries: readonly IndirectEntry[],
  options: ReadOptions,
): AsyncGenerator<ObjectPiece[]> {
  let pieces: ObjectPiece[] = [];
  for (const { id, start, length, count } of entries) {
    const { indirections, contentId, compressed } = parseObjectId(id);
    if (indirections === 0) {
      pieces.push({ start, length, count, contentId, compressed });
      continue;
    }
    yield pieces;
    pieces = [];
    for (let i = 0; i < count; i++) {
      const shift = start + i * length;
      const below = streamPieces(contents, { objectId: id, size: length }, options);
      for await (const part of below) {
        yield part.map((piece) => ({ ...piece, start: shift + piece.start }));
      }
    }
  }
  yield pieces;
}

async function* streamIndirect(
  contents: ContentManager,
  id: ObjectId,
  options: ReadOptions,
): AsyncGenerator<IndirectEntry[]> {
  const decoder = new IndirectDecoder();
  for await (const bytes of streamObject(contents, indexObjectOf(id), options)) {
    for (let at = 0; at < bytes.length; at += LIST_BYTES) {
      decoder.push(bytes.subarray(at, at + LIST_BYTES));
      const entries = decoder.take();
      if (entries.length > 0) yield entries;
    }
  }
  yield decoder.finish();
}

async function readIndirect(
  contents: ContentManager,
  id: ObjectId,
  options: ReadOptions = {},
): Promise<IndirectEntry[]> {
  const decoder = new IndirectDecoder();
  for await (const bytes of streamObject(contents, indexObjectOf(id), options)) {
    decoder.push(bytes);
  }
  return decoder.finish();
}

/**
 * Calls `visit` for every content of an object, first its indexes, then its data. The first call
 * has the content in the object's ID. Awaits the result of `visit`. Throws `CONTENT_NOT_FOUND` or
 * `DAMAGED_BLOB` if an index is unreadable.
 */
export async function visitContents(
  contents: ContentManager,
  id: ObjectId,
  visit: (id: ContentId) => Promise<void> | void,
): Promise<void> {
  const { indirections, contentId } = parseObjectId(id);
  if (indirections === 0) {
    await visit(contentId);
    return;
  }
  await visitContents(contents, indexObjectOf(id), visit);
  for (const entry of await readIndirect(contents, id)) {
    const child = parseObjectId(entry.id);
    // A volume has millions of pieces, and nearly all are plain contents: await only promises.
    const waiting =
      child.indirections > 0 ? visitContents(contents, entry.id, visit) : visit(child.contentId);
    if (waiting) await waiting;
  }
}

export async function readPiece(
  contents: ContentManager,
  piece: Pick<ObjectPiece, 'contentId' | 'compressed'>,
  options: ReadOptions = {},
): Promise<Uint8Array> {
  const bytes = await contents.getContent(piece.contentId, options);
  if (!piece.compressed) return bytes;
  try {
    return decompressContent(bytes, undefined, CHUNK_BYTES_MAX);
  } catch (cause) {
    throw new CodedError('BAD_OBJECT', `content ${piece.contentId} cannot be decompressed`, {
      cause,
    });
  }
}

/** Reads a whole object into memory: directories, index objects, symlink targets. */
export async function readObject(
  contents: ContentManager,
  id: ObjectId,
  options: ReadOptions = {},
): Promise<Uint8Array> {
  const { indirections, contentId, compressed } = parseObjectId(id);
  if (indirections === 0) return readPiece(contents, { contentId, compressed }, options);
  const pieces = await listPieces(contents, id, options);
  const length = objectLength(pieces);
  if (length > WHOLE_BYTES_MAX) {
    throw new CodedError('BAD_OBJECT', `object ${id} is too long to be metadata`);
  }
  const out = Buffer.allocUnsafe(length);
  for (const piece of singly(pieces)) {
    out.set(await readPiece(contents, piece, options), piece.start);
  }
  return out;
}

/** The bytes of an object in order, one content at a time. Fetches the next content meanwhile. */
export async function* streamObject(
  contents: ContentManager,
  id: ObjectId,
  options: ReadOptions = {},
): AsyncGenerator<Uint8Array> {
  const pieces = singly(await listPieces(contents, id, options));
  const readNext = (): Promise<Uint8Array> | undefined => {
    const { value: piece } = pieces.next();
    return piece && readPiece(contents, piece, options);
  };
  for (let next = readNext(); next;) {
    const bytes = await next;
    next = readNext();
    next?.catch(() => undefined);
    yield bytes;
  }
}

/** Yields each repetition as its own piece. */
export function* singly(pieces: Iterable<ObjectPiece>): Generator<ObjectPiece, undefined> {
  for (const piece of pieces) {
    if (piece.count === 1) yield piece;
    for (let i = 0; piece.count > 1 && i < piece.count; i++) {
      yield { ...piece, start: piece.start + i * piece.length, count: 1 };
    }
  }
}

/** Reads `length` bytes at an offset, or fewer at the end of the object. */
export async function readRange(
  contents: ContentManager,
  pieces: readonly ObjectPiece[],
  offset: number,
  length: number,
): Promise<Uint8Array> {
  const end = offset + length;
  const parts: Uint8Array[] = [];
  const reached = pieces.filter((piece) => endOf(piece) > offset && piece.start < end);
  for (const piece of singly(reached)) {
    if (endOf(piece) <= offset || piece.start >= end) continue;
    const bytes = await readPiece(contents, piece);
    parts.push(bytes.subarray(Math.max(0, offset - piece.start), end - piece.start));
  }
  return Buffer.concat(parts);
}
