import { type ObjectPiece, type Repository, singly, streamPieces } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';

/** A content of a file and its place among them. */
export interface NumberedPiece {
  readonly piece: ObjectPiece;
  /** Counts repetitions one by one. */
  readonly number: number;
}

/**
 * Pieces that are kept between two looks; of more, which are some 40 GiB, the list is read again.
 * Our choice.
 */
const KEPT_MAX = 16_384;

/**
 * The contents of one file of a snapshot, which can be gone through several times, however many
 * they are.
 */
export class FilePieces {
  readonly #contents: Repository['contents'];
  readonly #entry: Pick<DirectoryEntry, 'objectId' | 'size'>;
  readonly #signal: AbortSignal;
  /** Undefined until it was gone through once, and when there are too many. */
  #kept: ObjectPiece[] | undefined;

  constructor(
    { contents }: Repository,
    entry: Pick<DirectoryEntry, 'objectId' | 'size'>,
    signal: AbortSignal,
  ) {
    this.#contents = contents;
    this.#entry = entry;
    this.#signal = signal;
  }

  get sizeBytes(): number {
    return this.#entry.size;
  }

  /**
   * Repetitions of one content together; the number is of the first. Throws what `streamPieces`
   * throws.
   */
  async *numbered(): AsyncGenerator<NumberedPiece> {
    let number = 0;
    for await (const pieces of this.#batches()) {
      for (const piece of pieces) {
        yield { piece, number };
        number += piece.count;
      }
    }
  }

  /** Each repetition by itself, of those whose number is wanted. */
  async *wanted(isWanted: (number: number) => boolean): AsyncGenerator<ObjectPiece> {
    for await (const { piece, number } of this.numbered()) {
      let next = number;
      for (const single of singly([piece])) if (isWanted(next++)) yield single;
    }
  }

  async *#batches(): AsyncGenerator<readonly ObjectPiece[]> {
    if (this.#kept) {
      yield this.#kept;
      return;
    }
    let kept: ObjectPiece[] | undefined = [];
    for await (const pieces of streamPieces(this.#contents, this.#entry, {
      signal: this.#signal,
    })) {
      if (kept && kept.length + pieces.length > KEPT_MAX) kept = undefined;
      for (const piece of kept ? pieces : []) kept?.push(piece);
      yield pieces;
    }
    this.#kept = kept;
  }
}
