import { createHash } from 'node:crypto';
import {
  asError,
  type Clock,
  CodedError,
  isCode,
  MINUTE_NS,
  Stopwatch,
  withRetry,
} from '../../base/index.ts';
import type { BlobMetadata, BlobStorage } from '../../blob/index.ts';
import { CommittedIndex } from '../index/committed-index.ts';
import { memorySource } from '../index/byte-source.ts';
import { IndexBody } from '../index/index-body.ts';
import type { ActiveIndexSet, IndexStore, SignalOptions } from './index-store.ts';
import { forEachIndexBlob, loadIndexBlob } from './index-blobs.ts';
import { type BlobCodec } from './sealed-blob.ts';

/**
 * Kopia refreshes loaded indexes at most this often while it runs
 * (repo/content/committed_read_manager.go).
 */
const REFRESH_AFTER_NS = 15n * 60n * 1_000_000_000n;
/**
 * Whoever misses a pack looks again for index blobs at most this often, and for half of the time at
 * most: a look reads all of them where others write. Our choice: packs are deleted an hour after
 * the rewrite that moved what they held.
 */
const LOOK_HOLDS_NS_MIN = MINUTE_NS;
const LOOK_HOLDS_NS_MAX = 30n * MINUTE_NS;
const LOOK_HOLDS_TIMES = 2n;
/** Index blobs that went away while being read: a compaction raced. Kopia's number of tries. */
const LOAD_ATTEMPTS_MAX = 10;
/**
 * Share of the index's memory for what is written while the index is read anew; more goes to
 * scratch files. Our choice.
 */
const WRITTEN_MEANWHILE_PARTS = 4;

export interface LoadedIndexOptions {
  readonly storage: BlobStorage;
  readonly codec: BlobCodec;
  readonly indexStore: IndexStore;
  readonly clock: Clock;
  /** Above it, merged indexes go to scratch files. */
  readonly indexMemoryBytes: number;
}

/** How much of the index a caller needs. */
export type IndexNeed = 'whatever can be read' | 'all of it';

/**
 * The index as it was read from its blobs, with what was written here since. Reading it anew goes
 * on beside flushes.
 */
export class LoadedIndex {
  readonly #options: LoadedIndexOptions;
  #index: CommittedIndex;
  /** Since the listing of the loaded index began. */
  #age: Stopwatch;
  /**
   * Since the last look for those who miss something; one under way serves all who ask meanwhile.
   */
  #sinceLook: Stopwatch;
  #lookHoldsNs = LOOK_HOLDS_NS_MIN;
  #look: Promise<void> | undefined;
  /** The blobs and the watermark that the index was loaded from. */
  #loadedFrom = '';
  /** Readings are counted as they begin; the one that the index comes from. */
  #readings = 0;
  #loadedReading = 0;
  /** Index blobs in force that could not be read. */
  #unreadable: readonly CodedError[] = [];
  #need: IndexNeed = 'whatever can be read';
  /**
   * For each refresh under way, the indexes that were written meanwhile: its listing may lack them.
   */
  readonly #refreshing = new Set<CommittedIndex>();

  constructor(options: LoadedIndexOptions) {
    this.#options = options;
    this.#index = new CommittedIndex(options.indexMemoryBytes, 0);
    this.#age = new Stopwatch(options.clock);
    this.#sinceLook = new Stopwatch(options.clock);
  }

  /** Hold on to it only between two awaits. */
  get index(): CommittedIndex {
    return this.#index;
  }

  /** `DAMAGED_BLOB` for each unreadable index blob in force. */
  get unreadable(): readonly CodedError[] {
    return this.#unreadable;
  }

  /** Sets the need of this and of each later refresh. An unmet one throws `INDEX_UNREADABLE`. */
  require(need: IndexNeed): void {
    this.#need = need;
    this.#assertReadable(this.#unreadable);
  }

  #assertReadable(unreadable: readonly CodedError[]): void {
    const [first] = unreadable;
    if (first && this.#need === 'all of it') throw indexUnreadable(first, unreadable.length);
  }

  /**
   * Reads the index blobs anew. An abort ends it at once, also while the storage does not answer:
   * the index stays as it is.
   */
  async refresh({ signal }: SignalOptions = {}): Promise<void> {
    signal?.throwIfAborted();
    const memoryBytes = this.#options.indexMemoryBytes / WRITTEN_MEANWHILE_PARTS;
    const writtenMeanwhile = new CommittedIndex(memoryBytes, 0);
    this.#refreshing.add(writtenMeanwhile);
    const loading = withRetry(() => this.#load(writtenMeanwhile, signal), {
      signal,
      budgetOf: () => ({ attemptsMax: LOAD_ATTEMPTS_MAX, delayMsMax: 5000 }),
      firstDelayMs: 100,
      onRetry: (error) => {
        if (!isCode(error, 'INDEX_CHANGING')) throw error;
      },
    });
    const ended = loading.finally(() => {
      this.#refreshing.delete(writtenMeanwhile);
      writtenMeanwhile.close();
    });
    await orAborted(ended, signal);
  }

  async #load(writtenMeanwhile: CommittedIndex, signal: AbortSignal | undefined): Promise<void> {
    const { storage, codec, indexStore, clock, indexMemoryBytes } = this.#options;
    const age = new Stopwatch(clock);
    const reading = ++this.#readings;
    const active = await indexStore.listActive({ signal }).catch(asChanging);
    const { blobs, watermarkSeconds } = active;
    const loaded = new CommittedIndex(indexMemoryBytes, watermarkSeconds);
    const unreadable = [...active.lost];
    try {
      const receive = (body: IndexBody): void => {
        loaded.add(body);
      };
      const onDamaged = (error: CodedError): void => void unreadable.push(error);
      await forEachIndexBlob(storage, codec, blobs, receive, { signal, onDamaged });
      this.#assertReadable(unreadable);
      // The inputs of a damaged compaction may still be there.
      if (unreadable.length > 0) await this.#loadSuperseded(active.superseded, receive, signal);
      // Nobody waits any more, and the repository may be closed.
      signal?.throwIfAborted();
      // One that began later has ended: what it saw must not be unseen again.
      if (reading < this.#loadedReading) {
        loaded.close();
        return;
      }
      loaded.takeOver(writtenMeanwhile);
      loaded.settle();
      this.#index.close();
      this.#index = loaded;
      this.#loadedReading = reading;
      this.#loadedFrom = nameOf({ blobs, watermarkSeconds });
      this.#unreadable = unreadable;
      this.#age = age;
    } catch (cause) {
      loaded.close();
      asChanging(cause);
    }
  }

  async #loadSuperseded(
    blobs: readonly BlobMetadata[],
    receive: (body: IndexBody) => void,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { storage, codec } = this.#options;
    for (const blob of blobs) {
      try {
        receive(await loadIndexBlob(storage, codec, blob, { signal }));
      } catch (error) {
        if (!isCode(error, 'DAMAGED_BLOB', 'BLOB_NOT_FOUND')) throw error;
      }
    }
  }

  /**
   * Lists the index blobs anew, and reads them when there are others. Returns whether there were.
   */
  async refreshIfChanged(): Promise<boolean> {
    if (await this.#isAsListed()) return false;
    await this.refresh();
    return true;
  }

  /** {@link refreshIfChanged}, unless that was a moment ago. */
  async lookAgain(): Promise<void> {
    if (this.#sinceLook.elapsedNs < this.#lookHoldsNs) return;
    this.#look ??= this.#lookNow().finally(() => {
      this.#look = undefined;
    });
    await this.#look;
  }

  async #lookNow(): Promise<void> {
    const since = new Stopwatch(this.#options.clock);
    await this.refreshIfChanged();
    this.#lookHoldsNs = clamp(
      since.elapsedNs * LOOK_HOLDS_TIMES,
      LOOK_HOLDS_NS_MIN,
      LOOK_HOLDS_NS_MAX,
    );
    this.#sinceLook = since;
  }

  async #isAsListed(): Promise<boolean> {
    try {
      return nameOf(await this.#options.indexStore.listActive()) === this.#loadedFrom;
    } catch (error) {
      // A compaction took away what was just listed.
      if (isCode(error, 'BLOB_NOT_FOUND')) return false;
      throw error;
    }
  }

  async refreshIfOld(options: SignalOptions = {}): Promise<void> {
    if (this.#age.elapsedNs > REFRESH_AFTER_NS) await this.refresh(options);
  }

  /** Adds what was written here; takes over the bytes. */
  add(body: Uint8Array): void {
    // Copies: whoever merges a body gives its memory back.
    for (const written of this.#refreshing) {
      written.add(new IndexBody(memorySource(new Uint8Array(body))));
    }
    this.#index.add(new IndexBody(memorySource(body)));
    this.#index.settle();
    // What others wrote meanwhile is not in it: the next look reads everything.
    this.#loadedFrom = '';
  }

  close(): void {
    this.#index.close();
  }
}

function clamp(value: bigint, min: bigint, max: bigint): bigint {
  if (value < min) return min;
  return value > max ? max : value;
}

/**
 * Ends with the task or with the signal, whichever is first. What the storage does not end goes on,
 * and nobody heeds it.
 */
async function orAborted(task: Promise<void>, signal: AbortSignal | undefined): Promise<void> {
  if (!signal) return task;
  const aborted = Promise.withResolvers<never>();
  const abort = (): void => {
    aborted.reject(asError(signal.reason));
  };
  signal.addEventListener('abort', abort, { once: true });
  try {
    await Promise.race([task, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

function indexUnreadable(first: CodedError, count: number): CodedError {
  const more = count > 1 ? `, and ${count - 1} more index blobs are unreadable` : '';
  const text = `index ${first.message}${more}; nothing was deleted, because what they name would look unused. Run "longshore repository repair"`;
  return new CodedError('INDEX_UNREADABLE', text, { cause: first, facts: first.facts });
}

/** A compaction took away what was just listed: everything is listed anew. */
function asChanging(cause: unknown): never {
  if (!isCode(cause, 'BLOB_NOT_FOUND')) throw cause;
  const text = `index ${cause.message}`;
  throw new CodedError('INDEX_CHANGING', text, { cause, retry: 'backoff' });
}

/** Tells one set of index blobs from another: their bytes never change under their names. */
function nameOf({
  blobs,
  watermarkSeconds,
}: Pick<ActiveIndexSet, 'blobs' | 'watermarkSeconds'>): string {
  const hash = createHash('sha256').update(String(watermarkSeconds));
  for (const id of blobs.map((blob) => blob.id).sort()) hash.update(` ${id}`);
  return hash.digest('hex');
}
