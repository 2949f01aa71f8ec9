import { asError, CodedError, posix, Semaphore } from '../../base/index.ts';
import {
  contentIdOf,
  hashOf,
  type ObjectPiece,
  readPiece,
  type Repository,
} from '../../repository/index.ts';
import { readRangeInto } from '../../volume-files/index.ts';
import { openForDirectReads } from './direct-reads.ts';
import { HoleReports } from '../file-data/hole-reports.ts';
import type { FilePieces } from './file-pieces.ts';
import { LONGEST_BYTES, type RangeComparer } from './range-comparer.ts';

/** Ranges of one file that are compared at once. Our choice: the threads never wait. */
const OUTSTANDING_MAX = 256;

/**
 * Contents of index version 1 that are fetched at once. Each is in memory twice. Our choice: this
 * thread decompresses and compares them one by one.
 */
const FETCHED_MAX = 4;

/** The pieces of a file that differ from the snapshot: a bit for each. */
export class Difference {
  #bits = new Uint8Array(64);
  /** Bytes of the snapshot in the differing pieces. */
  bytes = 0;
  pieces = 0;

  add(number: number, lengthBytes: number): void {
    const at = number >> 3;
    if (at >= this.#bits.length) {
      const grown = new Uint8Array(2 ** Math.ceil(Math.log2(at + 1)));
      grown.set(this.#bits);
      this.#bits = grown;
    }
    this.#bits[at] = (this.#bits[at] ?? 0) | (1 << (number & 7));
    this.bytes += lengthBytes;
    this.pieces++;
  }

  has(number: number): boolean {
    return (((this.#bits[number >> 3] ?? 0) >> (number & 7)) & 1) === 1;
  }
}

function* placesOf({ count }: ObjectPiece): Generator<number> {
  for (let i = 0; i < count; i++) yield i;
}

/** Called during a comparison. */
export interface ComparisonEvents {
  /** Bytes that were compared. Known zeros are not read. */
  readonly onCompared: (bytes: number, isRead: boolean) => void;
}

/** Compares files of the target with files of the snapshot, content by content. */
export class FileComparer {
  readonly #repository: Repository;
  readonly #ranges: RangeComparer;
  readonly #signal: AbortSignal;
  readonly #events: ComparisonEvents;
  readonly #fetched = new Semaphore(FETCHED_MAX);
  readonly #holes = new HoleReports();
  /**
   * Content id of this many zeros. Hashing zeros costs as much as reading them, and volumes have
   * millions of holes of one length.
   */
  #zeros: { readonly length: number; readonly contentId: string } | undefined;

  constructor(
    repository: Repository,
    ranges: RangeComparer,
    signal: AbortSignal,
    events: ComparisonEvents,
  ) {
    this.#repository = repository;
    this.#ranges = ranges;
    this.#signal = signal;
    this.#events = events;
  }

  /**
   * Pieces of the snapshot's file that differ from an open file. Bytes behind the file's end count
   * as zeros, because the restore extends the file with zeros. Throws system errors of reads, and
   * `BAD_OBJECT`.
   */
  async compare(pieces: FilePieces, descriptor: number): Promise<Difference> {
    const direct = await openForDirectReads(descriptor, pieces.sizeBytes);
    try {
      return await this.#compare(pieces, descriptor, direct?.fd);
    } finally {
      await direct?.close();
    }
  }

  async #compare(
    pieces: FilePieces,
    descriptor: number,
    direct: number | undefined,
  ): Promise<Difference> {
    const difference = new Difference();
    const slots = new Semaphore(OUTSTANDING_MAX);
    const under = new Set<Promise<void>>();
    let failure: unknown;
    const check = async (piece: ObjectPiece, number: number): Promise<void> => {
      await slots.acquire();
      const done = this.#isEqual(piece, descriptor, direct)
        .then((isEqual) => {
          this.#events.onCompared(piece.length, true);
          if (!isEqual) difference.add(number, piece.length);
        })
        .catch((error: unknown) => {
          failure ??= error;
        })
        .finally(() => {
          slots.release();
          under.delete(done);
        });
      under.add(done);
    };
    try {
      for await (const { piece, number } of pieces.numbered()) {
        if (piece.length === 0) continue;
        const hasHoles =
          piece.count > 1 && this.#isZeros(piece) && (await this.#holes.areReliable(descriptor));
        const places = hasHoles ? this.#outsideHoles(piece, descriptor) : placesOf(piece);
        for (const i of places) {
          this.#signal.throwIfAborted();
          if (failure !== undefined) break;
          await check({ ...piece, start: piece.start + i * piece.length, count: 1 }, number + i);
        }
        if (failure !== undefined) break;
      }
    } finally {
      await Promise.all(under);
    }
    if (failure !== undefined) throw asError(failure);
    return difference;
  }

  /** Repetitions of zeros at which the file has data. Only these must be read. */
  *#outsideHoles({ start, length, count }: ObjectPiece, descriptor: number): Generator<number> {
    let next = 0;
    while (next < count) {
      const data = posix().seekData(descriptor, start + next * length);
      const at = data === undefined ? count : Math.min(count, Math.floor((data - start) / length));
      if (at > next) this.#events.onCompared((at - next) * length, false);
      if (at < count) yield at;
      next = at + 1;
    }
  }

  #isZeros({ length, contentId, compressed }: ObjectPiece): boolean {
    if (compressed || length > LONGEST_BYTES) return false;
    if (this.#zeros?.length !== length) {
      const { hasher } = this.#repository.codec;
      this.#zeros = { length, contentId: contentIdOf('', hasher.hash([new Uint8Array(length)])) };
    }
    return this.#zeros.contentId === contentId;
  }

  async #isEqual(
    piece: ObjectPiece,
    descriptor: number,
    direct: number | undefined,
  ): Promise<boolean> {
    const { start: offset, length, contentId } = piece;
    if (!piece.compressed) {
      return this.#ranges.isEqual({ descriptor, offset, length, hash: hashOf(contentId) }, direct);
    }
    await this.#fetched.acquire();
    try {
      return await this.#isEqualToFetched(piece, descriptor);
    } finally {
      this.#fetched.release();
    }
  }

  /** Index version 1 hashes compressed bytes, so the bytes themselves must be compared. */
  async #isEqualToFetched(piece: ObjectPiece, descriptor: number): Promise<boolean> {
    const { start: offset, length, contentId } = piece;
    this.#signal.throwIfAborted();
    const wanted = await readPiece(this.#repository.contents, piece, { signal: this.#signal });
    if (wanted.length !== length) {
      const text = `content ${contentId} has ${wanted.length} bytes, but the snapshot says ${length}`;
      throw new CodedError('BAD_OBJECT', text);
    }
    const found = Buffer.allocUnsafe(length);
    readRangeInto({ descriptor, offset }, found);
    return found.equals(wanted);
  }
}
