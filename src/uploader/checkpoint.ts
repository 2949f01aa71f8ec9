import { asError, type Logger, messageOf } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';

export interface CheckpointOptions {
  readonly intervalNs: bigint;
  /** Packed bytes that may be lost with the process. */
  readonly bytes: number;
  readonly logger: Logger;
}

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
    const due =
      clock.nowNs() - this.#lastNs >= this.#options.intervalNs ||
      contents.session.packedByteCount >= this.#options.bytes;
    if (!due) return;
    this.#running = this.#checkpoint().finally(() => {
      this.#running = undefined;
    });
  }

  async #checkpoint(): Promise<void> {
    const { contents, clock } = this.#repository;
    this.#lastNs = clock.nowNs();
    try {
      await contents.flush();
      await contents.refreshIfOld();
      this.#options.logger.debug({}, 'checkpoint: everything stored so far is durable');
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
