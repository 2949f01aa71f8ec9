import { CodedError, type Logger, randomHex, Semaphore } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { patiently } from './bucket-retries.ts';
import { encodeSegment, type SegmentParts } from './segment.ts';
import { keyOf, type Try } from './journal-tries.ts';

export interface SegmentLimits {
  /** A segment is stored at this size, uncompressed. */
  readonly segmentBytes: number;
  /** Longest time until a segment is stored. */
  readonly segmentMs: number;
}

/** Our choice: work lost to a kill is repeated within seconds. */
export const SEGMENT_LIMITS: SegmentLimits = { segmentBytes: 4 << 20, segmentMs: 5000 };

export interface SegmentWriterOptions<P> {
  readonly bucket: Bucket;
  /** Folder of one journal. */
  readonly folder: string;
  /** `backup` or `restore`, for messages. */
  readonly kind: string;
  /** `isJournalSealed` */
  readonly isSealed: boolean;
  /** Called right before each put. */
  readonly assertLeading: () => void;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
  readonly limits?: SegmentLimits | undefined;
  /** Removes and returns the work that is not stored yet; undefined if there is none. */
  readonly take: () => P | undefined;
  readonly encode: (pending: P) => Promise<SegmentParts>;
  /** Called when a segment is stored. */
  readonly onStored: (parts: SegmentParts) => Promise<void>;
  /** Called when a segment could not be stored. */
  readonly onLost: (pending: P) => void;
}

/**
 * Stores the work of a run in numbered segments: when full, after a time limit, or by `flush`.
 * After a failed put, nothing more is stored. The next try reads the stored segments.
 */
export class SegmentWriter<P> {
  readonly #options: SegmentWriterOptions<P>;
  readonly #limits: SegmentLimits;
  readonly #turn = new Semaphore(1);
  readonly #keys: string[] = [];
  #own: Pick<Try, 'number' | 'owner'> = { number: 1, owner: randomHex(4) };
  #next = 0;
  #bytes = 0;
  #timer: NodeJS.Timeout | undefined;
  #failure: { readonly error: unknown } | undefined;
  #isClosed = false;

  constructor(options: SegmentWriterOptions<P>) {
    this.#options = options;
    this.#limits = options.limits ?? SEGMENT_LIMITS;
  }

  /** Continues after earlier tries. `keys` are the segments that count. */
  follow({ number, keys }: { readonly number: number; readonly keys: readonly string[] }): void {
    this.#own = { number: number + 1, owner: this.#own.owner };
    this.#keys.push(...keys);
  }

  /** Whether an earlier try has stored anything. */
  get isContinued(): boolean {
    return this.#own.number > 1;
  }

  /** The segments of earlier tries that count, then the own ones. */
  get keys(): readonly string[] {
    return this.#keys;
  }

  /** Whether a segment is due by its size. */
  get isFull(): boolean {
    return this.#bytes >= this.#limits.segmentBytes;
  }

  added(bytes: number): void {
    this.#bytes += bytes;
  }

  /** Throws the error that stopped the storing. */
  assertUsable(): void {
    if (this.#failure) throw this.#failure.error as Error;
  }

  flushLater(): void {
    if (this.#isClosed) return;
    if (this.#timer !== undefined && !this.isFull) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => {
        // The next call throws the same error.
        this.flush().catch(() => undefined);
      },
      this.isFull ? 0 : this.#limits.segmentMs,
    );
    this.#timer.unref();
  }

  /** Throws `STILL_AWAY` and `SCRATCH_FULL`, and again at every later call. */
  async flush(): Promise<void> {
    await this.alone(async () => {
      try {
        this.assertUsable();
        clearTimeout(this.#timer);
        this.#timer = undefined;
        this.#bytes = 0;
        const pending = this.#options.take();
        if (pending === undefined) return;
        await this.#store(pending).catch((error: unknown) => {
          this.#options.onLost(pending);
          throw error;
        });
      } catch (error) {
        this.#failure ??= { error };
        throw error;
      }
    });
  }

  async #store(pending: P): Promise<void> {
    const { bucket, folder, kind, signal, assertLeading, encode, onStored } = this.#options;
    const { logger, patienceMs, isSealed } = this.#options;
    const parts = await encode(pending);
    const bytes = encodeSegment(parts);
    const key = keyOf(folder, this.#own, this.#next);
    const about = { what: `store what a ${kind} has done`, logger, signal, patienceMs };
    await patiently(() => {
      assertLeading();
      return bucket.put(key, [bytes], { signal, isSealed });
    }, about);
    this.#next++;
    this.#keys.push(key);
    await onStored(parts);
  }

  /** Runs the task while no segment is being stored. */
  async alone<T>(task: () => Promise<T> | T): Promise<T> {
    await this.#turn.acquire();
    try {
      return await task();
    } finally {
      this.#turn.release();
    }
  }

  /** Stops storing for good. Resolves when no put is under way. */
  async end(why: string): Promise<void> {
    this.#failure ??= { error: new CodedError('JOURNAL_CLOSED', why) };
    await this.alone(() => undefined);
  }

  /** Stops the timer. Resolves when no put is under way. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.alone(() => undefined);
  }
}
