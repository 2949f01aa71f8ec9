import { asError, type Nanoseconds } from '../base/index.ts';
import type { Compressor } from '../codec/index.ts';
import {
  type ObjectId,
  type ObjectMark,
  ObjectWriter,
  type Repository,
  writeMarked,
  type WriteObjectOptions,
} from '../repository/index.ts';
import { type DirectoryEntry, DirectoryEncoder, type DirectorySummary } from '../snapshot/index.ts';
import type { Outcome } from './outcomes.ts';
import { Summarizer } from './summary.ts';

/** Entries whose text is made at once: names may take 1.5 KB each. Our choice. */
const TEXT_ENTRIES = 2048;

/** The stored form of a directory. */
export interface StoredDirectory {
  readonly id: ObjectId;
  readonly summary: DirectorySummary;
}

/** What a {@link DirectoryWriter} had written at some moment. */
export interface DirectoryMark {
  readonly object: ObjectMark;
  readonly encoder: DirectoryEncoder;
  readonly summarizer: Summarizer;
}

/** Writes a directory object as what becomes of its entries is known, in stored order. */
export class DirectoryWriter {
  readonly #repository: Repository;
  readonly #options: WriteObjectOptions;
  readonly #object: ObjectWriter;
  readonly #encoder = new DirectoryEncoder();
  readonly #summarizer = new Summarizer();
  #canceled = false;
  /** A call of {@link write} or {@link finish} that is under way. */
  #writing: Promise<unknown> | undefined;
  #finished: StoredDirectory | undefined;
  /** The first of a write: what was pushed then may be lost. */
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

  /** The next entries; directories of a call go first. One call at a time. */
  async write(outcomes: readonly Outcome[]): Promise<void> {
    const entries = this.add(outcomes);
    entries.sort((a, b) => Number(b.type === 'd') - Number(a.type === 'd'));
    if (entries.length === 0) return;
    await this.#track(this.#object.push(Buffer.from(this.#encoder.entries(entries))));
  }

  /** Counts what became of entries, and returns those that are to be written. */
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

  /** `ownMtimeNs` counts when the directory is empty. */
  async finish(ownMtimeNs: Nanoseconds, canceled: boolean): Promise<StoredDirectory> {
    const summary = this.#summarizer.finish(ownMtimeNs, canceled || this.#canceled);
    const end = async (): Promise<StoredDirectory> => {
      await this.#object.push(Buffer.from(this.#encoder.end(summary)));
      // In the same moment in which nothing is being written any more.
      return (this.#finished = { id: await this.#object.finish(), summary });
    };
    return this.#track(end());
  }

  /**
   * Waits until nothing is being written. The caller must look again at once, without another wait
   * in between: `while (writer.isWriting) await writer.settled()`.
   */
  async settled(): Promise<void> {
    await this.#writing?.catch(() => undefined);
  }

  get isWriting(): boolean {
    return this.#writing !== undefined;
  }

  /** The whole directory, once {@link finish} is done. */
  get finished(): StoredDirectory | undefined {
    return this.#finished;
  }

  /** What is written so far. Only while nothing is being written. Throws the failure of a write. */
  mark(): DirectoryMark {
    if (this.#failure) throw asError(this.#failure.error);
    return {
      object: this.#object.mark(),
      encoder: this.#encoder.copy(),
      summarizer: this.#summarizer.copy(),
    };
  }

  /** A directory of what was marked and these entries; what is being written goes on. */
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
