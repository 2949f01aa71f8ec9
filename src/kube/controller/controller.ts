import { isCode, type Logger, messageOf, retryOf } from '../../base/index.ts';
import { WorkQueue } from '../queue/work-queue.ts';

export interface Result {
  /** Look again after this long, whatever happens in between. */
  readonly requeueAfterMs?: number | undefined;
  /**
   * What was begun goes on beside, and is looked at again when it has ended: whether it fails again
   * is not known yet.
   */
  readonly isUnderWay?: boolean;
}

export interface ControllerOptions {
  readonly name: string;
  readonly workers: number;
  readonly logger: Logger;
  /** Looks at what is there now and does what is due; running it twice changes nothing. */
  readonly reconcile: (key: string, signal: AbortSignal) => Promise<Result | undefined>;
}

const BACKOFF_FIRST_MS = 100;
const BACKOFF_MAX_MS = 30_000;
const REFUSED_MS = 60_000;

/**
 * Reconciles one kind: a bounded number at once, one key never twice at once, failures with
 * backoff.
 */
export class Controller {
  readonly queue = new WorkQueue({
    backoffFirstMs: BACKOFF_FIRST_MS,
    backoffMaxMs: BACKOFF_MAX_MS,
  });
  readonly #options: ControllerOptions;

  constructor(options: ControllerOptions) {
    this.#options = options;
  }

  /** Runs until aborted; what is under way then ends by its own look at the signal. */
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
      // Somebody else wrote: the change comes through the watch.
      logger.debug(fields, 'conflict; reconciling again');
    } else if (retryOf(error) === 'never') {
      // A missing right may still be granted, but nothing may wait forever.
      logger.error(fields, 'reconcile failed; trying again in a minute');
      this.queue.addAfter(key, REFUSED_MS);
      return;
    } else {
      logger.warn(fields, 'reconcile failed; trying again');
    }
    this.queue.addFailed(key);
  }
}
