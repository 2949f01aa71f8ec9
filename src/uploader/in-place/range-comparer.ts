import { assert } from '../../base/index.ts';
import type { Span } from '../../codec/index.ts';
import { type Repository, SLAB_BYTES } from '../../repository/index.ts';
import { HashBatcher } from '../hash-batcher.ts';
import {
  directBytes,
  type DirectRange,
  isForDirectReads,
  isRefusal,
  readDirectly,
} from './direct-reads.ts';
import { SharedSlabs, type SlabRoom } from './shared-slabs.ts';
import type {
  FileRange,
  OpenFailure,
  RangeToCompare,
  ThreadPool,
} from '../../volume-files/index.ts';

interface Waiting {
  readonly range: RangeToCompare;
  /** Descriptor for direct reads, for a range that is read so. */
  direct: number | undefined;
  readonly resolve: (isEqual: boolean) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * What a thread reads and hashes in one go. Our choice: at the end of each task some lanes of the
 * hash are empty, which costs little in a long one; and where less waits, all threads get some of
 * it.
 */
const BATCH_BYTES = { least: 8 << 20, most: 64 << 20 };
/** Of the ranges after a task so much may be read ahead by the kernel. Our choice. */
const AHEAD_BYTES = 16 << 20;
/** No splitter makes longer contents, by far. */
export const LONGEST_BYTES = BATCH_BYTES.most;
/** Small files of one task. */
const BATCH_RANGES = 512;
/** Tasks beyond those that the threads work on, so that none waits for this thread. */
const TASKS_AHEAD = 1;

/** Reads ranges of the target and compares their hashes with contents; threads do both. */
export class RangeComparer {
  readonly #pool: ThreadPool;
  readonly #bytes: Uint8Array;
  readonly #slabs: SharedSlabs;
  readonly #batcher: HashBatcher;
  /** Direct reads that are under way. */
  #reads = 0;
  #isDirectRefused = false;
  readonly #signal: AbortSignal;
  readonly #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #running = 0;
  #isPumpDue = false;

  constructor({ dataPath }: Pick<Repository, 'dataPath'>, signal: AbortSignal) {
    assert(dataPath, 'a comparison needs a repository opened with a data path');
    this.#pool = dataPath.pool;
    this.#bytes = dataPath.arena.bytes;
    this.#slabs = new SharedSlabs(dataPath.slabAddresses);
    // What is still read brings company for what waits to be hashed.
    this.#batcher = new HashBatcher(this.#pool, () => this.#reads === 0);
    this.#batcher.beginStream();
    this.#signal = signal;
  }

  /**
   * Whether these bytes are those of the content. `direct`: another descriptor of the file, for
   * reads past the page cache. Throws what the system says when they cannot be read. Both
   * descriptors must stay open until it is known.
   */
  isEqual(range: RangeToCompare, direct?: number): Promise<boolean> {
    // It counts as different, and whoever fetches the content learns how long it is: a list that
    // lies must not make anybody read a whole volume for it.
    if (range.length > LONGEST_BYTES) return Promise.resolve(false);
    const isDirect = !this.#isDirectRefused && direct !== undefined && isForDirectReads(range);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ range, resolve, reject, direct: isDirect ? direct : undefined });
      this.#waitingBytes += range.length;
      if (this.#isPumpDue) return;
      this.#isPumpDue = true;
      // What is asked for in the same turn goes together.
      setImmediate(() => {
        this.#isPumpDue = false;
        this.#pump();
      });
    });
  }

  #pump(): void {
    let isStarted = true;
    while (isStarted) {
      const [next] = this.#waiting;
      if (!next) return;
      isStarted = next.direct === undefined ? this.#startTask() : this.#startRead(next);
    }
  }

  /** Threads read and hash. False where nothing can be started now. */
  #startTask(): boolean {
    if (this.#running >= this.#pool.threads + TASKS_AHEAD) return false;
    const slab = this.#slabs.takeWhole();
    if (slab === undefined) return false;
    const batch = this.#take(this.#nextRanges());
    this.#running++;
    void this.#compare(batch, slab).finally(() => {
      this.#running--;
      this.#slabs.giveWhole(slab);
      this.#pump();
    });
    return true;
  }

  /**
   * A direct read, which no thread waits for; then threads hash. False where it can't be started
   * now.
   */
  #startRead(next: Waiting): boolean {
    const length = directBytes(next.range);
    if (length > this.#slabs.totalBytes) {
      // Longer than all memory there is: threads read it part by part.
      next.direct = undefined;
      return true;
    }
    const room = this.#slabs.take(length);
    if (!room) return false;
    this.#take(1);
    void this.#compareDirectly(next, room).finally(() => {
      this.#slabs.give(room);
      this.#pump();
    });
    return true;
  }

  #take(ranges: number): Waiting[] {
    const batch = this.#waiting.splice(0, ranges);
    this.#waitingBytes -= bytesOf(batch);
    return batch;
  }

  /** How many of those that wait go into one task. */
  #nextRanges(): number {
    const share = this.#waitingBytes / this.#pool.threads;
    const most = Math.min(BATCH_BYTES.most, Math.max(BATCH_BYTES.least, share));
    let [ranges, total] = [0, 0];
    for (const { range, direct } of this.#waiting) {
      total += range.length;
      const isFull = direct !== undefined || total > most || ranges === BATCH_RANGES;
      if (ranges > 0 && isFull) break;
      ranges++;
    }
    return ranges;
  }

  /** What the disk can bring while threads hash: the beginning of what comes after this task. */
  #ahead(): FileRange[] {
    const ahead: FileRange[] = [];
    let bytes = 0;
    for (const { range, direct } of this.#waiting) {
      if (direct !== undefined) break;
      ahead.push(range);
      bytes += range.length;
      if (bytes >= AHEAD_BYTES) break;
    }
    return ahead;
  }

  async #compareDirectly(waiting: Waiting, room: SlabRoom): Promise<void> {
    const { range, direct, resolve, reject } = waiting;
    try {
      this.#signal.throwIfAborted();
      const spans = await this.#read({ ...range, direct: direct as number }, room);
      this.#signal.throwIfAborted();
      resolve(Buffer.compare(range.hash, await this.#batcher.hash(spans)) === 0);
    } catch (error) {
      // It was the last one that could bring company.
      if (this.#reads === 0) this.#batcher.flush();
      if (!isRefusal(error)) {
        reject(error);
        return;
      }
      this.#isDirectRefused = true;
      waiting.direct = undefined;
      this.#waiting.unshift(waiting);
      this.#waitingBytes += range.length;
    }
  }

  async #read(range: DirectRange, { spans }: SlabRoom): Promise<Span[]> {
    this.#reads++;
    try {
      return await readDirectly(range, spans, this.#bytes);
    } finally {
      this.#reads--;
    }
  }

  async #compare(batch: readonly Waiting[], address: number): Promise<void> {
    try {
      this.#signal.throwIfAborted();
      const slab: Span = { address, length: SLAB_BYTES };
      const ranges = batch.map(({ range }) => range);
      const { equal, failures } = await this.#pool.compareRanges(ranges, slab, this.#ahead());
      for (const failure of failures) batch[failure.index]?.reject(failureOf(failure));
      batch.forEach(({ resolve }, i) => {
        resolve(equal[i] === 1);
      });
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
}

const bytesOf = (batch: readonly Waiting[]): number =>
  batch.reduce((sum, { range }) => sum + range.length, 0);

const failureOf = ({ code, message }: OpenFailure): Error =>
  Object.assign(new Error(message), { code, syscall: 'read' });
