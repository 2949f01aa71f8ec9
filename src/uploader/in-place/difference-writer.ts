import { CodedError, mapLimited } from '../../base/index.ts';
import { blobId, hasBlob } from '../../blob/index.ts';
import type { IndexEntry, Repository } from '../../repository/index.ts';
import type { PieceWriter } from '../restore/piece-writer.ts';
import type { Difference } from './difference.ts';
import type { FilePieces } from './file-pieces.ts';

/** Packs that are looked up in the storage at once, and packs known to exist. */
const ASKED_AT_ONCE = 8;
const KNOWN_PACKS_MAX = 100_000;

/** Writes the differing pieces of a file. */
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
   * Call it before the first write. Checks that the repository has all needed contents, so that no
   * file stays half written. Throws `CONTENT_NOT_FOUND`, `BAD_OBJECT`, `DAMAGED_BLOB`, and errors
   * of the storage.
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
      // Maintenance may have moved the content.
      if (await contents.findMoved(entry)) return;
      this.#knownPacks.delete(entry.packBlobId);
      const text = `blob ${entry.packBlobId} is missing: content ${entry.contentId} is lost`;
      throw new CodedError('DAMAGED_BLOB', text);
    });
  }

  /** If it throws, the next run writes the rest. */
  async write(pieces: FilePieces, difference: Difference, descriptor: number): Promise<void> {
    const wanted = pieces.wanted((number) => difference.has(number));
    await this.#pieces.writeEach(wanted, descriptor);
  }
}
