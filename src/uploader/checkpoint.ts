import { asError, type Logger, messageOf } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';

export interface CheckpointOptions {
  readonly intervalNs: bigint;
  /** Packed bytes after which a checkpoint is made in any case. */
  readonly bytes: number;
  readonly logger: Logger;
}

/** A checkpoint for every 5 % stored, at least of 128 MiB: after a kill at 90 % of 4 GiB under 15 % are stored again. */
const SHARE = 0.05;
const BYTES_MIN = 128 << 20;
/** Index entries that wait in memory, some 300 bytes each: millions of small files fill no pack for long. */
const ENTRIES_MAX = 1 << 17;
/** How often the time is looked at; the bytes are looked at whenever some were stored. */
const LOOK_EVERY_MS = 100;

/** Makes what an upload has stored durable every so often, so that a killed one stores little again. */
export class CheckpointTimer {
  readonly #repository: Repository;
  readonly #options: CheckpointOptions;
  readonly #timer: NodeJS.Timeout;
  #lastNs: bigint;
  #running: Promise<void> | undefined;
  #failure: unknown;
  #stopped = false;
  #checkpointedBytes = 0;

  constructor(repository: Repository, options: CheckpointOptions) {
    this.#repository = repository;
    this.#options = options;
    this.#lastNs = repository.clock.nowNs();
    this.#timer = setInterval(() => {
      this.look();
    }, LOOK_EVERY_MS);
    this.#timer.unref();
  }

  /** Starts a checkpoint when one is due. */
  look(): void {
    if (this.#stopped || this.#running || this.#failure !== undefined) return;
    const { clock, contents } = this.#repository;
    const isLate = clock.nowNs() - this.#lastNs >= this.#options.intervalNs;
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

  /** After the interval the packs being filled are closed too: slow sources fill none for long. */
  async #checkpoint(isLate: boolean): Promise<void> {
    const { contents, clock } = this.#repository;
    if (isLate) this.#lastNs = clock.nowNs();
    try {
      await (isLate ? contents.flush() : contents.checkpoint());
      if (isLate) await contents.refreshIfOld();
      this.#options.logger.debug({}, 'checkpoint: what is stored so far is durable');
    } catch (error) {
      this.#failure = error;
      this.#options.logger.error({ error: messageOf(error) }, 'checkpoint failed');
    }
  }

  /** Waits for a checkpoint that is under way. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#running;
  }

  /** Throws the failure of a checkpoint: nothing that came after it may count. */
  assertHealthy(): void {
    if (this.#failure !== undefined) throw asError(this.#failure);
  }
}
