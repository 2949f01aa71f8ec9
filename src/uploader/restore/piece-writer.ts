import { asError, CodedError, Semaphore } from '../../base/index.ts';
import {
  contentIdOf,
  objectLength,
  type ObjectPiece,
  type Repository,
  singly,
} from '../../repository/index.ts';
import { type DirectoryEntry, isCheckpointed } from '../../snapshot/index.ts';
import type { RestoreWriter } from './restore-writer.ts';

/** Contents of large files in flight. */
const PIECES_MAX = 2048;

/**
 * Throws `BAD_OBJECT` if a file's content has another length than the snapshot says. Partly read
 * files of checkpoints are exempt: they have Kopia's size of the whole file.
 */
export function assertWhole(entry: DirectoryEntry, pieces: readonly ObjectPiece[]): void {
  const length = objectLength(pieces);
  if (length === entry.size || isCheckpointed(entry.name)) return;
  const text = `its content has ${length} bytes, but the snapshot says ${entry.size}: restore it from another snapshot`;
  throw new CodedError('BAD_OBJECT', text);
}

/** Writes many pieces of large files at a time, at their offsets. */
export class PieceWriter {
  readonly #repository: Repository;
  readonly #writer: RestoreWriter;
  readonly #signal: AbortSignal;
  readonly #onWritten: (bytes: number) => void;
  /** Separate from the slots for entries: a file holds one while it waits for its pieces. */
  readonly #slots = new Semaphore(PIECES_MAX);

  constructor(
    repository: Repository,
    writer: RestoreWriter,
    signal: AbortSignal,
    onWritten: (bytes: number) => void,
  ) {
    this.#repository = repository;
    this.#writer = writer;
    this.#signal = signal;
    this.#onWritten = onWritten;
  }

  /** With `sparse`, unwritten parts of the file already read as zeros. */
  async write(pieces: readonly ObjectPiece[], descriptor: number, sparse: boolean): Promise<void> {
    const zeros = sparse ? this.#zeroContents(pieces) : new Set<string>();
    const written = pieces.filter((piece) => {
      if (!zeros.has(piece.contentId)) return true;
      this.#onWritten(piece.length * piece.count);
      return false;
    });
    await this.writeEach(singly(written), descriptor, sparse);
  }

  /** Writes pieces without repetitions, in order of arrival. */
  async writeEach(
    pieces: Iterable<ObjectPiece> | AsyncIterable<ObjectPiece>,
    descriptor: number,
    sparse = false,
  ): Promise<void> {
    const writes = new Set<Promise<void>>();
    let failure: unknown;
    try {
      for await (const piece of pieces) {
        await this.#slots.acquire();
        if (failure !== undefined || this.#signal.aborted) {
          this.#slots.release();
          break;
        }
        const write = this.#writeOne(piece, { descriptor, offset: piece.start, sparse })
          .catch((error: unknown) => {
            failure ??= error;
          })
          .finally(() => {
            this.#slots.release();
            writes.delete(write);
          });
        writes.add(write);
      }
    } finally {
      this.#writer.flush();
      await Promise.all(writes);
    }
    this.#signal.throwIfAborted();
    if (failure !== undefined) throw asError(failure);
  }

  async #writeOne(
    piece: ObjectPiece,
    target: { descriptor: number; offset: number; sparse: boolean },
  ): Promise<void> {
    const entry = this.#repository.contents.findOrThrow(piece.contentId);
    await this.#writer.add({ entry, compressedObject: piece.compressed, target });
    this.#onWritten(piece.length);
  }

  /** Frequent contents that are all zeros. A sparse file need not write them. */
  #zeroContents(pieces: readonly ObjectPiece[]): Set<string> {
    const repeated = new Map<string, ObjectPiece>();
    const seen = new Set<string>();
    for (const piece of pieces) {
      if (piece.count > 1 || seen.has(piece.contentId)) repeated.set(piece.contentId, piece);
      seen.add(piece.contentId);
    }
    const zeros = new Set<string>();
    for (const [id, { length }] of repeated) {
      const hash = this.#repository.codec.hasher.hash([new Uint8Array(length)]);
      if (contentIdOf('', hash) === id) zeros.add(id);
    }
    return zeros;
  }
}
