import { CodedError, mapLimited } from '../../base/index.ts';
import { blobId, hasBlob } from '../../blob/index.ts';
import type { IndexEntry, Repository } from '../../repository/index.ts';
import type { PieceWriter } from '../piece-writer.ts';
import type { Difference } from './difference.ts';
import type { FilePieces } from './file-pieces.ts';

/** Packs that the storage is asked for at once, and that are known to be there. */
const ASKED_AT_ONCE = 8;
const KNOWN_PACKS_MAX = 100_000;

/** Writes the pieces of a file that differ. */
export class DifferenceWriter {
  readonly #repository: Repository;
  readonly #pieces: PieceWriter;
  readonly #signal: AbortSignal;
  #knownPacks = new Set<string>();

  constructor(repository: Repository, pieces: PieceWriter, signal: AbortSignal) {
    this.#repository = repository;
    this.#pieces = pieces;
    this.#signal = signal;
  }

  /**
   * Before the first write: whether the repository has all that is to be written, so that nothing
   * is written of a file that it could not complete. Throws `CONTENT_NOT_FOUND`, `BAD_OBJECT`,
   * `DAMAGED_BLOB`, and what the storage throws.
   */
  async assertThere(pieces: FilePieces, difference: Difference): Promise<void> {
    const { contents } = this.#repository;
    let asked: IndexEntry[] = [];
    for await (const piece of pieces.wanted((number) => difference.has(number))) {
      const entry = contents.findOrThrow(piece.contentId);
      if (!piece.compressed && entry.originalLength !== piece.length) {
        const text = `content ${piece.contentId} has ${entry.originalLength} bytes, but the snapshot says ${piece.length}`;
        throw new CodedError('BAD_OBJECT', text);
      }
      if (this.#knownPacks.has(entry.packBlobId)) continue;
      if (this.#knownPacks.size >= KNOWN_PACKS_MAX) this.#knownPacks = new Set();
      this.#knownPacks.add(entry.packBlobId);
      asked.push(entry);
      if (asked.length < ASKED_AT_ONCE) continue;
      await this.#ask(asked);
      asked = [];
    }
    await this.#ask(asked);
  }

  async #ask(entries: readonly IndexEntry[]): Promise<void> {
    const { storage, contents } = this.#repository;
    await mapLimited(entries, ASKED_AT_ONCE, async (entry) => {
      this.#signal.throwIfAborted();
      if (await hasBlob(storage, blobId(entry.packBlobId))) return;
      // Maintenance may have moved it.
      if (await contents.findMoved(entry)) return;
      this.#knownPacks.delete(entry.packBlobId);
      const text = `blob ${entry.packBlobId} is missing: content ${entry.contentId} is lost`;
      throw new CodedError('DAMAGED_BLOB', text);
    });
  }

  /** What was not written when it throws is written by the next run. */
  async write(pieces: FilePieces, difference: Difference, descriptor: number): Promise<void> {
    const wanted = pieces.wanted((number) => difference.has(number));
    await this.#pieces.writeEach(wanted, descriptor);
  }
}
