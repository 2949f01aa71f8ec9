import { assert } from '../../base/index.ts';
import type { Span } from '../../codec/index.ts';
import { type Repository, SLAB_BYTES } from '../../repository/index.ts';
import type {
  FileRange,
  OpenFailure,
  RangeToCompare,
  ThreadPool,
} from '../../volume-files/index.ts';

interface Waiting {
  /** The kernel has been asked for it. */
  isAhead: boolean;
  readonly range: RangeToCompare;
  readonly resolve: (isEqual: boolean) => void;
  readonly reject: (error: unknown) => void;
}

/** What a thread reads and hashes in one go. Our choice: contents of about the same length are hashed in pairs. */
const BATCH_BYTES = 16 << 20;
/** Of the next ranges so much is read ahead by the kernel. Our choice. */
const AHEAD_BYTES = 48 << 20;
/** Small files of one task. */
const BATCH_RANGES = 512;
/** Tasks beyond those that the threads work on, so that none waits for this thread. */
const TASKS_AHEAD = 1;

/** Reads ranges of the target and compares their hashes with contents; threads do both. */
export class RangeComparer {
  readonly #pool: ThreadPool;
  readonly #slabs: number[];
  readonly #batchBytes: number;
  readonly #signal: AbortSignal;
  readonly #waiting: Waiting[] = [];
  #running = 0;
  #isPumpDue = false;

  constructor({ dataPath }: Repository, signal: AbortSignal) {
    assert(dataPath, 'a comparison needs a repository opened with a data path');
    this.#pool = dataPath.pool;
    this.#slabs = [...dataPath.slabAddresses];
    this.#batchBytes = Math.min(BATCH_BYTES, this.#slabs.length * SLAB_BYTES);
    this.#signal = signal;
  }

  /** Whether these bytes are those of the content. Throws what the system says when they cannot be read. */
  isEqual(range: RangeToCompare): Promise<boolean> {
    // No splitter makes such a content: it counts as different, and whoever fetches it learns what it is.
    if (range.length > this.#batchBytes) return Promise.resolve(false);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ range, resolve, reject, isAhead: false });
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
    while (this.#waiting.length > 0 && this.#running < this.#pool.threads + TASKS_AHEAD) {
      const bytes = this.#nextBytes();
      const count = Math.ceil(bytes.total / SLAB_BYTES);
      if (count > this.#slabs.length) return;
      const slabs = this.#slabs.splice(0, count);
      this.#running++;
      void this.#compare(this.#waiting.splice(0, bytes.ranges), slabs).finally(() => {
        this.#running--;
        this.#slabs.push(...slabs);
        this.#pump();
      });
    }
  }

  /** How many of those that wait fit into one task. */
  #nextBytes(): { ranges: number; total: number } {
    let [ranges, total] = [0, 0];
    for (const { range } of this.#waiting) {
      const next = total + range.length;
      if (ranges > 0 && (next > this.#batchBytes || ranges === BATCH_RANGES)) break;
      total = next;
      ranges++;
    }
    return { ranges, total };
  }

  /** What the disk can bring while threads hash: each range once, and no more than fits into the next tasks. */
  #ahead(): FileRange[] {
    const ahead: FileRange[] = [];
    let bytes = 0;
    for (const waiting of this.#waiting) {
      bytes += waiting.range.length;
      if (bytes > AHEAD_BYTES) break;
      if (!waiting.isAhead) ahead.push(waiting.range);
      waiting.isAhead = true;
    }
    return ahead;
  }

  async #compare(batch: readonly Waiting[], addresses: readonly number[]): Promise<void> {
    try {
      this.#signal.throwIfAborted();
      const slabs = addresses.map((address): Span => ({ address, length: SLAB_BYTES }));
      const ranges = batch.map(({ range }) => range);
      const { equal, failures } = await this.#pool.compareRanges(ranges, slabs, this.#ahead());
      for (const failure of failures) batch[failure.index]?.reject(failureOf(failure));
      batch.forEach(({ resolve }, i) => {
        resolve(equal[i] === 1);
      });
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
}

const failureOf = ({ code, message }: OpenFailure): Error =>
  Object.assign(new Error(message), { code, syscall: 'read' });
