import { CodedError, Column } from '../../base/index.ts';
import { type ContentId, contentIdOfKey, writeContentKey } from '../index/content-id.ts';
import type { ContentManager } from '../content/content-manager.ts';
import type { ObjectId } from './object-id.ts';
import { readPiece, streamPieces } from './object-reader.ts';
import type { PieceCache } from './piece-cache.ts';

/** Maximum entries: 4 TiB in pieces of 4 MiB. Their list takes 50 to 90 MiB. Our choice. */
const PIECES_MAX = 1 << 20;
/** Content keys in one buffer. Our choice. */
const KEYS_A_PIECE = 4096;

export interface RandomObjectOptions {
  readonly cache: PieceCache;
  readonly signal?: AbortSignal | undefined;
  readonly piecesMax?: number;
}

/**
 * Reads an object at any offset. Holds a compact list of its contents. Repetitions, such as holes
 * of a volume, take one entry.
 */
export class RandomObject {
  readonly sizeBytes: number;
  readonly #contents: ContentManager;
  readonly #cache: PieceCache;
  readonly #starts = new Column(Float64Array);
  readonly #lengths = new Column(Uint32Array);
  readonly #counts = new Column(Float64Array);
  /** 1 if the content has its own compression header. */
  readonly #compressed = new Column(Uint8Array);
  /** Index keys of the contents, all of the same length. */
  readonly #keys: Buffer[] = [];
  #keyBytes = 0;
  #count = 0;

  private constructor(contents: ContentManager, sizeBytes: number, cache: PieceCache) {
    this.#contents = contents;
    this.sizeBytes = sizeBytes;
    this.#cache = cache;
  }

  /** Reads the list of contents. Throws `BAD_OBJECT`, `OBJECT_TOO_LONG`, and read errors. */
  static async open(
    contents: ContentManager,
    object: { readonly objectId: ObjectId; readonly size: number },
    { cache, signal, piecesMax = PIECES_MAX }: RandomObjectOptions,
  ): Promise<RandomObject> {
    const opened = new RandomObject(contents, object.size, cache);
    for await (const pieces of streamPieces(contents, object, { signal })) {
      signal?.throwIfAborted();
      for (const piece of pieces) opened.#add(piece);
      if (opened.#count <= piecesMax) continue;
      const text = `object ${object.objectId} has more than ${piecesMax} contents, which is as many as are looked up at random`;
      throw new CodedError('OBJECT_TOO_LONG', text);
    }
    return opened;
  }

  /** Number of list entries. */
  get pieces(): number {
    return this.#count;
  }

  #add({ start, length, count, contentId, compressed }: ListedPiece): void {
    if (length === 0) return;
    const at = this.#count++;
    this.#starts.set(at, start);
    this.#lengths.set(at, length);
    this.#counts.set(at, count);
    if (compressed) this.#compressed.set(at, 1);
    const keyBytes = 1 + (contentId.length >> 1);
    this.#keyBytes ||= keyBytes;
    if (keyBytes !== this.#keyBytes) {
      throw new CodedError('BAD_OBJECT', `content ${contentId} has another hash than the others`);
    }
    const piece = Math.floor(at / KEYS_A_PIECE);
    const keys = (this.#keys[piece] ??= Buffer.alloc(KEYS_A_PIECE * keyBytes));
    writeContentKey(contentId, keys, (at % KEYS_A_PIECE) * keyBytes);
  }

  /**
   * Reads `lengthBytes` bytes from `offset`, or fewer at the end. Do not modify them. Throws
   * `BAD_OBJECT` if the list has a gap, read errors, and the signal's reason.
   */
  async read(
    offset: number,
    lengthBytes: number,
    { signal }: { readonly signal?: AbortSignal | undefined } = {},
  ): Promise<Uint8Array> {
    const end = Math.min(offset + lengthBytes, this.sizeBytes);
    const parts: Uint8Array[] = [];
    let from = offset;
    for (let at = this.#find(offset); from < end && at < this.#count; at++) {
      const start = this.#starts.get(at);
      const length = this.#lengths.get(at);
      const until = start + length * this.#counts.get(at);
      if (from < start || from >= until) continue;
      const bytes = await this.#piece(at, signal);
      while (from < Math.min(end, until)) {
        const inPiece = (from - start) % length;
        const part = bytes.subarray(inPiece, Math.min(length, inPiece + end - from));
        if (part.length === 0) break;
        parts.push(part);
        from += part.length;
      }
    }
    // A shorter result would make the caller misplace the bytes that follow.
    if (from < end) throw new CodedError('BAD_OBJECT', `an object lacks its bytes from ${from} on`);
    const [only] = parts;
    return only && parts.length === 1 ? only : Buffer.concat(parts);
  }

  #piece(at: number, signal: AbortSignal | undefined): Promise<Uint8Array> {
    const keys = this.#keys[Math.floor(at / KEYS_A_PIECE)] as Buffer;
    const from = (at % KEYS_A_PIECE) * this.#keyBytes;
    const contentId: ContentId = contentIdOfKey(keys.subarray(from, from + this.#keyBytes));
    const compressed = this.#compressed.get(at) === 1;
    const length = this.#lengths.get(at);
    const load = async (): Promise<Uint8Array> => {
      const bytes = await readPiece(this.#contents, { contentId, compressed });
      if (bytes.length === length) return bytes;
      const text = `content ${contentId} has ${bytes.length} bytes, and its list says ${length}`;
      throw new CodedError('BAD_OBJECT', text);
    };
    return this.#cache.get(`${compressed ? 'Z' : ''}${contentId}`, load, signal);
  }

  /** The last entry that starts at or before `offset`. */
  #find(offset: number): number {
    let low = 0;
    let high = this.#count;
    while (high - low > 1) {
      const middle = (low + high) >>> 1;
      if (this.#starts.get(middle) <= offset) low = middle;
      else high = middle;
    }
    return low;
  }
}

interface ListedPiece {
  readonly start: number;
  readonly length: number;
  readonly count: number;
  readonly contentId: ContentId;
  readonly compressed: boolean;
}
