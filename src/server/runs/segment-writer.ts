import { CodedError, type Logger, randomHex, Semaphore } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { patiently } from './patience.ts';
import { encodeSegment, type SegmentParts } from './segment.ts';
import { keyOf, type Try } from './stored-tries.ts';

export interface SegmentLimits {
  /** A segment is stored when it has so many bytes, uncompressed. */
  readonly segmentBytes: number;
  /** And at the latest after this. */
  readonly segmentMs: number;
}

/** Our choice: what is lost to a kill is done again in seconds. */
export const SEGMENT_LIMITS: SegmentLimits = { segmentBytes: 4 << 20, segmentMs: 5000 };

export interface SegmentWriterOptions<P> {
  readonly bucket: Bucket;
  /** Of one journal. */
  readonly folder: string;
  /** `backup`, `restore`: for messages. */
  readonly kind: string;
  /** `isJournalSealed` */
  readonly isSealed: boolean;
  /** Right before each put. */
  readonly assertLeading: () => void;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
  readonly limits?: SegmentLimits | undefined;
  /**
   * What is done and not stored yet, which is the writer's from here on; undefined where there is
   * nothing.
   */
  readonly take: () => P | undefined;
  readonly encode: (pending: P) => Promise<SegmentParts>;
  /** Its segment is stored. */
  readonly onStored: (parts: SegmentParts) => Promise<void>;
  /** Its segment could not be stored. */
  readonly onLost: (pending: P) => void;
}

/**
 * Stores what a run has done in numbered segments, one after the other: when there is enough of it,
 * after a while, and when it is told to. Once a segment could not be stored nothing more is:
 * whoever goes on reads what was.
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

  /** After the tries before: `keys` are the segments that this one goes on from. */
  follow({ number, keys }: { readonly number: number; readonly keys: readonly string[] }): void {
    this.#own = { number: number + 1, owner: this.#own.owner };
    this.#keys.push(...keys);
  }

  /** Whether an earlier try has left anything. */
  get isContinued(): boolean {
    return this.#own.number > 1;
  }

  /** Those that this try goes on from, and its own. */
  get keys(): readonly string[] {
    return this.#keys;
  }

  /** How much is pending. */
  get isFull(): boolean {
    return this.#bytes >= this.#limits.segmentBytes;
  }

  added(bytes: number): void {
    this.#bytes += bytes;
  }

  /** Throws why nothing can be stored any more. */
  assertUsable(): void {
    if (this.#failure) throw this.#failure.error as Error;
  }

  flushLater(): void {
    if (this.#isClosed) return;
    if (this.#timer !== undefined && !this.isFull) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => {
        // The next call throws what has failed.
        this.flush().catch(() => undefined);
      },
      this.isFull ? 0 : this.#limits.segmentMs,
    );
    this.#timer.unref();
  }

  /**
   * Stores what is pending. Throws `STILL_AWAY`, `SCRATCH_FULL`; then the run is over, and so says
   * every later call.
   */
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

  /** While nothing is stored. */
  async alone<T>(task: () => Promise<T> | T): Promise<T> {
    await this.#turn.acquire();
    try {
      return await task();
    } finally {
      this.#turn.release();
    }
  }

  /** Nothing is stored any more. Resolves when nothing is under way. */
  async end(why: string): Promise<void> {
    this.#failure ??= { error: new CodedError('JOURNAL_CLOSED', why) };
    await this.alone(() => undefined);
  }

  /** Resolves when nothing is under way, and stores nothing by itself any more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.alone(() => undefined);
  }
}
