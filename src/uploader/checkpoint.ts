import { asError, type Logger, messageOf, Stopwatch } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';

export interface CheckpointOptions {
  readonly intervalNs: bigint;
  /** Packed bytes after which a checkpoint is made in any case. */
  readonly bytes: number;
  /** Ends a look at what others wrote; what makes stored data durable goes on. */
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

/** A checkpoint for every 5 % stored, at least of 128 MiB: after a kill at 90 % of 4 GiB under 15 % are stored again. */
const SHARE = 0.05;
const BYTES_MIN = 128 << 20;
/**
 * Packs being filled are closed after this part of the time so far, at least the interval apart: a slow source would
 * leave a short pack for each minute of its days, and so little is read again after a kill.
 */
const CLOSE_AFTER_PARTS = 20n;
/** Index entries that wait in memory, some 300 bytes each: millions of small files fill no pack for long. */
const ENTRIES_MAX = 1 << 17;
/** How often the time is checked; the bytes are checked whenever some were stored. */
const LOOK_EVERY_MS = 100;

/** Makes what an upload has stored durable every so often, so that a killed one stores little again. */
export class CheckpointTimer {
  readonly #repository: Repository;
  readonly #options: CheckpointOptions;
  #timer: NodeJS.Timeout;
  readonly #sinceStart: Stopwatch;
  readonly #sinceNamed: Stopwatch;
  readonly #sinceClosed: Stopwatch;
  #running: Promise<void> | undefined;
  #refreshing: Promise<void> | undefined;
  #failure: unknown;
  #stopped = false;
  #checkpointedBytes = 0;

  constructor(repository: Repository, options: CheckpointOptions) {
    this.#repository = repository;
    this.#options = options;
    this.#sinceStart = new Stopwatch(repository.clock);
    this.#sinceNamed = new Stopwatch(repository.clock);
    this.#sinceClosed = new Stopwatch(repository.clock);
    this.#timer = this.#startTimer();
  }

  #startTimer(): NodeJS.Timeout {
    return setInterval(() => {
      this.look();
    }, LOOK_EVERY_MS).unref();
  }

  /** Goes on after {@link stop}. */
  resume(): void {
    this.#stopped = false;
    this.#timer = this.#startTimer();
  }

  /** Starts a checkpoint when one is due. */
  look(): void {
    if (this.#stopped || this.#running || this.#failure !== undefined) return;
    const { contents } = this.#repository;
    const isLate = this.#sinceNamed.elapsedNs >= this.#options.intervalNs;
    const { durableBytes, durableEntries } = contents.session;
    const isDue = durableBytes >= this.#bytesToCheckpoint() || durableEntries >= ENTRIES_MAX;
    if (!isLate && !isDue) return;
    this.#checkpointedBytes += durableBytes;
    this.#running = this.#checkpoint(isLate).finally(() => {
      this.#running = undefined;
    });
  }

  /** A share of what was stored, so that a kill costs little early and index blobs stay few later. */
  #bytesToCheckpoint(): number {
    const share = Math.max(BYTES_MIN, this.#checkpointedBytes * SHARE);
    return Math.min(this.#options.bytes, share);
  }

  async #checkpoint(isLate: boolean): Promise<void> {
    const { contents } = this.#repository;
    const closes =
      isLate && this.#sinceClosed.elapsedNs >= this.#sinceStart.elapsedNs / CLOSE_AFTER_PARTS;
    if (isLate) this.#sinceNamed.restart();
    if (closes) this.#sinceClosed.restart();
    try {
      await (closes ? contents.flush() : contents.checkpoint());
      if (isLate) this.#refresh();
      this.#options.logger.debug({}, 'checkpoint: everything stored so far is durable');
    } catch (error) {
      this.#failure = error;
      this.#options.logger.error({ error: messageOf(error) }, 'checkpoint failed');
    }
  }

  /**
   * A look at what others wrote, beside the checkpoints: reading a large index may take longer than they are apart. When
   * it fails the next one tries again, and nothing that is stored is in doubt.
   */
  #refresh(): void {
    const { logger, signal } = this.#options;
    this.#refreshing ??= this.#repository.contents
      .refreshIfOld({ signal })
      .catch((error: unknown) => {
        if (signal.aborted) return;
        logger.warn({ error: messageOf(error) }, 'the index could not be read again');
      })
      .finally(() => {
        this.#refreshing = undefined;
      });
  }

  /** Waits for what is under way; after an abort not for a look at what others wrote. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#running;
    await this.#refreshing;
  }

  /** Throws the failure of a checkpoint: nothing that came after it may count. */
  assertHealthy(): void {
    if (this.#failure !== undefined) throw asError(this.#failure);
  }
}
