import { isCode, type Logger, messageOf, retryOf } from '../../base/index.ts';
import { WorkQueue } from '../queue/work-queue.ts';

export interface Result {
  /** Reconcile again after this time, whatever happens in between. */
  readonly requeueAfterMs?: number | undefined;
  /** The work continues in the background. Its failures so far still count. */
  readonly isUnderWay?: boolean;
}

export interface ControllerOptions {
  readonly name: string;
  readonly workers: number;
  readonly logger: Logger;
  /** Reads the current state and acts on it. Running it twice changes nothing. */
  readonly reconcile: (key: string, signal: AbortSignal) => Promise<Result | undefined>;
}

const BACKOFF_FIRST_MS = 100;
const BACKOFF_MAX_MS = 30_000;
const REFUSED_MS = 60_000;

/** Reconciles one kind. A key never runs twice at once, and failures are retried. */
export class Controller {
  readonly queue = new WorkQueue({
    backoffFirstMs: BACKOFF_FIRST_MS,
    backoffMaxMs: BACKOFF_MAX_MS,
  });
  readonly #options: ControllerOptions;

  constructor(options: ControllerOptions) {
    this.#options = options;
  }

  /** Runs until the signal aborts. Running reconciles end through the signal. */
  async run(signal: AbortSignal): Promise<void> {
    const close = (): void => {
      this.queue.close();
    };
    signal.addEventListener('abort', close, { once: true });
    if (signal.aborted) close();
    await Promise.all(Array.from({ length: this.#options.workers }, () => this.#work(signal)));
  }

  async #work(signal: AbortSignal): Promise<void> {
    for (;;) {
      const key = await this.queue.take();
      if (key === undefined) return;
      try {
        const result = await this.#options.reconcile(key, signal);
        if (result?.isUnderWay !== true) this.queue.forget(key);
        if (result?.requeueAfterMs !== undefined) this.queue.addAfter(key, result.requeueAfterMs);
      } catch (error) {
        if (!signal.aborted) this.#failed(key, error);
      } finally {
        this.queue.done(key);
      }
    }
  }

  #failed(key: string, error: unknown): void {
    const { logger, name } = this.#options;
    const fields = { controller: name, key, error: messageOf(error) };
    if (isCode(error, 'KUBE_CONFLICT')) {
      // A concurrent write: the watch delivers the change.
      logger.debug(fields, 'conflict; reconciling again');
    } else if (retryOf(error) === 'never') {
      // A missing right may still be granted, so retry, but slowly.
      logger.error(fields, 'reconcile failed; trying again in a minute');
      this.queue.addAfter(key, REFUSED_MS);
      return;
    } else {
      logger.warn(fields, 'reconcile failed; trying again');
    }
    this.queue.addFailed(key);
  }
}
