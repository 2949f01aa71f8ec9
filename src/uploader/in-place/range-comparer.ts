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
  readonly range: RangeToCompare;
  readonly resolve: (isEqual: boolean) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * What a thread reads and hashes in one go. Our choice: at the end of each task some lanes of the hash are empty, which costs little
 * in a long one; and where less waits, all threads get some of it.
 */
const BATCH_BYTES = { least: 8 << 20, most: 64 << 20 };
/** Of the ranges after a task so much may be read ahead by the kernel. Our choice. */
const AHEAD_BYTES = 16 << 20;
/** Small files of one task. */
const BATCH_RANGES = 512;
/** Tasks beyond those that the threads work on, so that none waits for this thread. */
const TASKS_AHEAD = 1;

/** Reads ranges of the target and compares their hashes with contents; threads do both. */
export class RangeComparer {
  readonly #pool: ThreadPool;
  readonly #slabs: number[];
  readonly #signal: AbortSignal;
  readonly #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #running = 0;
  #isPumpDue = false;

  constructor({ dataPath }: Repository, signal: AbortSignal) {
    assert(dataPath, 'a comparison needs a repository opened with a data path');
    this.#pool = dataPath.pool;
    this.#slabs = [...dataPath.slabAddresses];
    this.#signal = signal;
  }

  /** Whether these bytes are those of the content. Throws what the system says when they cannot be read. */
  isEqual(range: RangeToCompare): Promise<boolean> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ range, resolve, reject });
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
    while (this.#waiting.length > 0 && this.#running < this.#pool.threads + TASKS_AHEAD) {
      const slab = this.#slabs.pop();
      if (slab === undefined) return;
      const batch = this.#waiting.splice(0, this.#nextRanges());
      this.#waitingBytes -= bytesOf(batch);
      this.#running++;
      void this.#compare(batch, slab).finally(() => {
        this.#running--;
        this.#slabs.push(slab);
        this.#pump();
      });
    }
  }

  /** How many of those that wait go into one task. */
  #nextRanges(): number {
    const share = this.#waitingBytes / this.#pool.threads;
    const most = Math.min(BATCH_BYTES.most, Math.max(BATCH_BYTES.least, share));
    let [ranges, total] = [0, 0];
    for (const { range } of this.#waiting) {
      total += range.length;
      if (ranges > 0 && (total > most || ranges === BATCH_RANGES)) break;
      ranges++;
    }
    return ranges;
  }

  /** What the disk can bring while threads hash: the beginning of what comes after this task. */
  #ahead(): FileRange[] {
    const ahead: FileRange[] = [];
    let bytes = 0;
    for (const { range } of this.#waiting) {
      ahead.push(range);
      bytes += range.length;
      if (bytes >= AHEAD_BYTES) break;
    }
    return ahead;
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
