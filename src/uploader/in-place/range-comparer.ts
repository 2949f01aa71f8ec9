import { assert } from '../../base/index.ts';
import type { Span } from '../../codec/index.ts';
import { type Repository, SLAB_BYTES } from '../../repository/index.ts';
import { HashBatcher } from '../file-data/hash-batcher.ts';
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
  /** Descriptor for a direct read; undefined for other reads. */
  direct: number | undefined;
  readonly resolve: (isEqual: boolean) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Bytes that a thread reads and hashes in one task. Our choice: lanes of the hash idle at the end
 * of each task, which matters less in a long task. With few bytes waiting, all threads get a share.
 */
const BATCH_BYTES = { least: 8 << 20, most: 64 << 20 };
/** Bytes that the kernel reads ahead after a task. Our choice. */
const AHEAD_BYTES = 16 << 20;
/** All splitters make much shorter contents. */
export const LONGEST_BYTES = BATCH_BYTES.most;
/** Most small files in one task. */
const BATCH_RANGES = 512;
/** Extra tasks, so that threads do not wait for this thread. */
const TASKS_AHEAD = 1;

/** Compares ranges of the target with hashes of contents. Threads read and hash. */
export class RangeComparer {
  readonly #pool: ThreadPool;
  readonly #bytes: Uint8Array;
  readonly #slabs: SharedSlabs;
  readonly #batcher: HashBatcher;
  /** Running direct reads. */
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
    // Running reads will bring more messages to hash in parallel.
    this.#batcher = new HashBatcher(this.#pool, () => this.#reads === 0);
    this.#batcher.beginStream();
    this.#signal = signal;
  }

  /**
   * Whether a range has the bytes of the content. `direct` is another descriptor of the file, for
   * reads past the page cache. Both descriptors must stay open until it settles. Rejects with
   * system errors of reads.
   */
  isEqual(range: RangeToCompare, direct?: number): Promise<boolean> {
    // Counts as different without reading. Fetching the content then shows its real length. So a
    // false length in a list cannot force long reads.
    if (range.length > LONGEST_BYTES) return Promise.resolve(false);
    const isDirect = !this.#isDirectRefused && direct !== undefined && isForDirectReads(range);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ range, resolve, reject, direct: isDirect ? direct : undefined });
      this.#waitingBytes += range.length;
      if (this.#isPumpDue) return;
      this.#isPumpDue = true;
      // Ranges of the same turn go into one task.
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

  /** Threads read and hash. Returns false if nothing can start now. */
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

  /** A direct read, without a thread, before threads hash. Returns false if it can't start now. */
  #startRead(next: Waiting): boolean {
    const length = directBytes(next.range);
    if (length > this.#slabs.totalBytes) {
      // Longer than all memory, so threads read it in parts.
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

  /** The number of waiting ranges for one task. */
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

  /** Ranges after this task, which the disk reads while threads hash. */
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
      // No other read can bring more messages now.
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
