import { asError, type Logger, messageOf, Stopwatch } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';

export interface CheckpointOptions {
  /** How often packs being filled are put, at first. */
  readonly intervalNs: bigint;
  /** How often an index blob names the packs. */
  readonly indexIntervalNs: bigint;
  /** Ends a look at what others wrote; what makes stored data durable goes on. */
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

/**
 * Packs being filled are closed after this part of the time so far, at least the interval apart: a
 * slow source would leave a short pack for each minute of its days, and so little is read again
 * after a kill.
 */
const CLOSE_AFTER_PARTS = 20n;
/**
 * Index entries that wait in memory, some 300 bytes each: millions of small files fill no pack for
 * long.
 */
const ENTRIES_MAX = 1 << 17;
/** How often the time is checked; the bytes are checked whenever some were stored. */
const LOOK_EVERY_MS = 100;

/**
 * Makes stored data durable at intervals, so that the upload after a killed one stores little
 * again. Each client reads every index blob, so index blobs are as rare as Kopia's. Until an index
 * blob names a pack, the next upload finds it by its session marker
 * (repository/killed-sessions.ts).
 */
export class CheckpointTimer {
  readonly #repository: Repository;
  readonly #options: CheckpointOptions;
  #timer: NodeJS.Timeout;
  readonly #sinceStart: Stopwatch;
  readonly #sinceChecked: Stopwatch;
  readonly #sinceNamed: Stopwatch;
  readonly #sinceClosed: Stopwatch;
  #running: Promise<void> | undefined;
  #refreshing: Promise<void> | undefined;
  #failure: unknown;
  #stopped = false;

  constructor(repository: Repository, options: CheckpointOptions) {
    this.#repository = repository;
    this.#options = options;
    this.#sinceStart = new Stopwatch(repository.clock);
    this.#sinceChecked = new Stopwatch(repository.clock);
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
    const { intervalNs, indexIntervalNs } = this.#options;
    const isLate = this.#sinceChecked.elapsedNs >= intervalNs;
    const isUnnamed =
      this.#sinceNamed.elapsedNs >= indexIntervalNs ||
      this.#repository.contents.session.durableEntries >= ENTRIES_MAX;
    if (!isLate && !isUnnamed) return;
    this.#running = this.#checkpoint(isLate, isUnnamed).finally(() => {
      this.#running = undefined;
    });
  }

  async #checkpoint(isLate: boolean, isUnnamed: boolean): Promise<void> {
    const { contents } = this.#repository;
    const closes =
      isLate && this.#sinceClosed.elapsedNs >= this.#sinceStart.elapsedNs / CLOSE_AFTER_PARTS;
    if (isLate) this.#sinceChecked.restart();
    if (isUnnamed) this.#sinceNamed.restart();
    if (closes) this.#sinceClosed.restart();
    try {
      if (isUnnamed) await (closes ? contents.flush() : contents.checkpoint());
      else if (closes) await contents.closePacks();
      if (isLate) this.#refresh();
      this.#options.logger.debug({}, 'checkpoint: everything stored so far is durable');
    } catch (error) {
      this.#failure = error;
      this.#options.logger.error({ error: messageOf(error) }, 'checkpoint failed');
    }
  }

  /**
   * A look at what others wrote, beside the checkpoints: reading a large index may take longer than
   * they are apart. When it fails the next one tries again, and nothing that is stored is in doubt.
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
