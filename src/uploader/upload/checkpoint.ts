import { asError, type Logger, messageOf, Stopwatch } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';

export interface CheckpointOptions {
  /** Initial interval for writing packs that are being filled. */
  readonly intervalNs: bigint;
  /** Interval for index blobs that name the packs. */
  readonly indexIntervalNs: bigint;
  /** Ends a refresh of the index. Making stored data durable continues. */
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

/**
 * Packs being filled are closed after this part of the elapsed time, at least the interval apart.
 * Otherwise a slow source would leave a short pack every minute for days. Little is read again
 * after a kill.
 */
const CLOSE_AFTER_PARTS = 20n;
/** Index entries in memory, some 300 bytes each. Small files fill a pack only slowly. */
const ENTRIES_MAX = 1 << 17;
/** Interval of checks of the time. Bytes are checked after every store. */
const LOOK_EVERY_MS = 100;

/**
 * Makes stored data durable at intervals, so that an upload after a kill stores little again. Every
 * client reads every index blob, so they are as rare as Kopia's. Until an index blob names a pack,
 * the next upload finds it by its session marker (repository/killed-sessions.ts).
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

  /** Continues after {@link stop}. */
  resume(): void {
    this.#stopped = false;
    this.#timer = this.#startTimer();
  }

  /** Starts a checkpoint if it is due. */
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
   * Reads new index blobs of other clients, parallel to checkpoints: a large index may take longer
   * than their interval. After a failure the next checkpoint retries. Stored data are not affected.
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

  /** Waits for running work. After an abort, does not wait for a refresh. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#running;
    await this.#refreshing;
  }

  /** Throws the failure of a checkpoint. Later stores must not count. */
  assertHealthy(): void {
    if (this.#failure !== undefined) throw asError(this.#failure);
  }
}
