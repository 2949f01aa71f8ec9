import { type ObjectPiece, type Repository, singly, streamPieces } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';

/** A content of a file, with its number in the file. */
export interface NumberedPiece {
  readonly piece: ObjectPiece;
  /** Each repetition has its own number. */
  readonly number: number;
}

/** A longer list (some 40 GiB of data) is read again at each pass. Our choice. */
const KEPT_MAX = 16_384;

/** The contents of a file of a snapshot, for any number of passes. */
export class FilePieces {
  readonly #contents: Repository['contents'];
  readonly #entry: Pick<DirectoryEntry, 'objectId' | 'size'>;
  readonly #signal: AbortSignal;
  /** Undefined before the first pass, and if there are too many. */
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

  /** Repetitions are one piece, with the number of the first. Throws like `streamPieces`. */
  async *numbered(): AsyncGenerator<NumberedPiece> {
    let number = 0;
    for await (const pieces of this.#batches()) {
      for (const piece of pieces) {
        yield { piece, number };
        number += piece.count;
      }
    }
  }

  /** Single pieces whose number is wanted. */
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
