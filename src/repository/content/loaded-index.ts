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

/** Kopia refreshes loaded indexes at most this often (repo/content/committed_read_manager.go). */
const REFRESH_AFTER_NS = 15n * 60n * 1_000_000_000n;
/**
 * Limits of lookups after a missing pack: the minimum and maximum pause, and the pause as a
 * multiple of the lookup's time. A lookup reads all index blobs if others write. Our choice: packs
 * are deleted an hour after the rewrite that moved their contents.
 */
const LOOK_HOLDS_NS_MIN = MINUTE_NS;
const LOOK_HOLDS_NS_MAX = 30n * MINUTE_NS;
const LOOK_HOLDS_TIMES = 2n;
/** Retries if a compaction deletes index blobs during the load. Kopia's number. */
const LOAD_ATTEMPTS_MAX = 10;
/**
 * Divides the index memory: entries written during a refresh get this share, and the rest go to
 * scratch files. Our choice.
 */
const WRITTEN_MEANWHILE_PARTS = 4;

export interface LoadedIndexOptions {
  readonly storage: BlobStorage;
  readonly codec: BlobCodec;
  readonly indexStore: IndexStore;
  readonly clock: Clock;
  /** Merged indexes above this size go to scratch files. */
  readonly indexMemoryBytes: number;
}

/** How much of the index a caller needs. */
export type IndexNeed = 'whatever can be read' | 'all of it';

/** The index loaded from blobs, plus entries written here. A refresh can run during flushes. */
export class LoadedIndex {
  readonly #options: LoadedIndexOptions;
  #index: CommittedIndex;
  /** Time since the listing of the loaded index began. */
  #age: Stopwatch;
  /** Time since the last lookup of a missing pack. Callers share a running lookup. */
  #sinceLook: Stopwatch;
  #lookHoldsNs = LOOK_HOLDS_NS_MIN;
  #look: Promise<void> | undefined;
  /** Hash of the blobs and the watermark that the index was loaded from. */
  #loadedFrom = '';
  /** Number of refreshes started, and the number of the refresh that loaded the current index. */
  #readings = 0;
  #loadedReading = 0;
  /** Active index blobs that could not be read. */
  #unreadable: readonly CodedError[] = [];
  #need: IndexNeed = 'whatever can be read';
  /** For each running refresh, the indexes written meanwhile, because its listing may lack them. */
  readonly #refreshing = new Set<CommittedIndex>();

  constructor(options: LoadedIndexOptions) {
    this.#options = options;
    this.#index = new CommittedIndex(options.indexMemoryBytes, 0);
    this.#age = new Stopwatch(options.clock);
    this.#sinceLook = new Stopwatch(options.clock);
  }

  /** Do not keep it across an await. */
  get index(): CommittedIndex {
    return this.#index;
  }

  /** `DAMAGED_BLOB` for each unreadable index blob in use. */
  get unreadable(): readonly CodedError[] {
    return this.#unreadable;
  }

  /** Sets the need of this and each later refresh. Throws `INDEX_UNREADABLE` if it is not met. */
  require(need: IndexNeed): void {
    this.#need = need;
    this.#assertReadable(this.#unreadable);
  }

  #assertReadable(unreadable: readonly CodedError[]): void {
    const [first] = unreadable;
    if (first && this.#need === 'all of it') throw indexUnreadable(first, unreadable.length);
  }

  /** Reads the index blobs again. An abort returns at once and keeps the old index. */
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
      // The inputs of a damaged compaction may still exist.
      if (unreadable.length > 0) await this.#loadSuperseded(active.superseded, receive, signal);
      // The caller has gone, and the repository may be closed.
      signal?.throwIfAborted();
      // A refresh that started later has already finished: keep its newer index.
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

  /** Lists the index blobs, and reads them if they changed. Returns whether they changed. */
  async refreshIfChanged(): Promise<boolean> {
    if (await this.#isAsListed()) return false;
    await this.refresh();
    return true;
  }

  /** {@link refreshIfChanged}, unless the last lookup was a moment ago. */
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
      // A compaction deleted a blob that was just listed.
      if (isCode(error, 'BLOB_NOT_FOUND')) return false;
      throw error;
    }
  }

  async refreshIfOld(options: SignalOptions = {}): Promise<void> {
    if (this.#age.elapsedNs > REFRESH_AFTER_NS) await this.refresh(options);
  }

  /** Adds an index written here. Takes ownership of the bytes. */
  add(body: Uint8Array): void {
    // Copy, because a merge frees the memory of its inputs.
    for (const written of this.#refreshing) {
      written.add(new IndexBody(memorySource(new Uint8Array(body))));
    }
    this.#index.add(new IndexBody(memorySource(body)));
    this.#index.settle();
    // The index lacks concurrent writes of others, so the next lookup must read everything.
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

/** Settles with the task or the abort. An aborted task may run on, and its result is ignored. */
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

/** A compaction deleted a blob that was just listed: list again. */
function asChanging(cause: unknown): never {
  if (!isCode(cause, 'BLOB_NOT_FOUND')) throw cause;
  const text = `index ${cause.message}`;
  throw new CodedError('INDEX_CHANGING', text, { cause, retry: 'backoff' });
}

/** Identifies a set of index blobs. Blobs never change under their names. */
function nameOf({
  blobs,
  watermarkSeconds,
}: Pick<ActiveIndexSet, 'blobs' | 'watermarkSeconds'>): string {
  const hash = createHash('sha256').update(String(watermarkSeconds));
  for (const id of blobs.map((blob) => blob.id).sort()) hash.update(` ${id}`);
  return hash.digest('hex');
}
