import { asError, type Nanoseconds } from '../../base/index.ts';
import type { Compressor } from '../../codec/index.ts';
import {
  type ObjectId,
  type ObjectMark,
  ObjectWriter,
  type Repository,
  writeMarked,
  type WriteObjectOptions,
} from '../../repository/index.ts';
import {
  type DirectoryEntry,
  DirectoryEncoder,
  type DirectorySummary,
} from '../../snapshot/index.ts';
import type { Outcome } from './entry-outcomes.ts';
import { Summarizer } from './directory-summary.ts';

/** Entries that are encoded at once. Names may take 1.5 KB each. Our choice. */
const TEXT_ENTRIES = 2048;

export interface StoredDirectory {
  readonly id: ObjectId;
  readonly summary: DirectorySummary;
}

/** State of a {@link DirectoryWriter} at some moment. */
export interface DirectoryMark {
  readonly object: ObjectMark;
  readonly encoder: DirectoryEncoder;
  readonly summarizer: Summarizer;
}

/** Writes a directory object in stored order, as its entries are finished. */
export class DirectoryWriter {
  readonly #repository: Repository;
  readonly #options: WriteObjectOptions;
  readonly #object: ObjectWriter;
  readonly #encoder = new DirectoryEncoder();
  readonly #summarizer = new Summarizer();
  #canceled = false;
  /** A running call of {@link write} or {@link finish}. */
  #writing: Promise<unknown> | undefined;
  #finished: StoredDirectory | undefined;
  /** The first failure of a write, after which entries may be lost. */
  #failure: { readonly error: unknown } | undefined;

  constructor(repository: Repository, compressor: Compressor | undefined) {
    const { contents, splitter } = repository;
    this.#repository = repository;
    this.#options = {
      prefix: 'k',
      compressor,
      metadataCompressor: compressor,
      splitter,
      indexSplitter: splitter,
    };
    this.#object = new ObjectWriter(contents, this.#options);
  }

  /** Writes the next entries; within a call, directories go first. Calls must not overlap. */
  async write(outcomes: readonly Outcome[]): Promise<void> {
    const entries = this.add(outcomes);
    entries.sort((a, b) => Number(b.type === 'd') - Number(a.type === 'd'));
    if (entries.length === 0) return;
    await this.#track(this.#object.push(Buffer.from(this.#encoder.entries(entries))));
  }

  /** Counts outcomes, and returns the entries to write. */
  add(outcomes: readonly Outcome[]): DirectoryEntry[] {
    return outcomes.flatMap((outcome) => {
      if (outcome.kind === 'canceled') this.#canceled = true;
      else if (outcome.kind === 'error') this.#summarizer.fail(outcome);
      else if (outcome.kind === 'entry') {
        this.#summarizer.add(outcome.entry);
        return outcome.entry;
      }
      return [];
    });
  }

  /** `ownMtimeNs` counts if the directory is empty. */
  async finish(ownMtimeNs: Nanoseconds, canceled: boolean): Promise<StoredDirectory> {
    const summary = this.#summarizer.finish(ownMtimeNs, canceled || this.#canceled);
    const end = async (): Promise<StoredDirectory> => {
      await this.#object.push(Buffer.from(this.#encoder.end(summary)));
      // Set before `isWriting` becomes false.
      return (this.#finished = { id: await this.#object.finish(), summary });
    };
    return this.#track(end());
  }

  /**
   * Waits until no write is running. The caller must check again without another wait in between:
   * `while (writer.isWriting) await writer.settled()`.
   */
  async settled(): Promise<void> {
    await this.#writing?.catch(() => undefined);
  }

  get isWriting(): boolean {
    return this.#writing !== undefined;
  }

  /** The whole directory, after {@link finish}. */
  get finished(): StoredDirectory | undefined {
    return this.#finished;
  }

  /** Marks the current state; not during a write. Throws the failure of a write. */
  mark(): DirectoryMark {
    if (this.#failure) throw asError(this.#failure.error);
    return {
      object: this.#object.mark(),
      encoder: this.#encoder.copy(),
      summarizer: this.#summarizer.copy(),
    };
  }

  /** Stores a directory of the marked state and these entries. Running writes continue. */
  async storeMarked(
    { object, encoder, summarizer }: DirectoryMark,
    entries: readonly DirectoryEntry[],
    ownMtimeNs: Nanoseconds,
    incomplete: string,
  ): Promise<StoredDirectory> {
    for (const entry of entries) summarizer.add(entry);
    const summary = { ...summarizer.finish(ownMtimeNs, true), incomplete };
    const parts = function* (): Generator<Uint8Array> {
      for (let i = 0; i < entries.length; i += TEXT_ENTRIES) {
        yield Buffer.from(encoder.entries(entries.slice(i, i + TEXT_ENTRIES)));
      }
      yield Buffer.from(encoder.end(summary));
    };
    const id = await writeMarked(this.#repository.contents, object, parts(), this.#options);
    return { id, summary };
  }

  async #track<T>(work: Promise<T>): Promise<T> {
    this.#writing = work;
    try {
      return await work;
    } catch (error) {
      this.#failure ??= { error };
      throw error;
    } finally {
      this.#writing = undefined;
    }
  }
}
