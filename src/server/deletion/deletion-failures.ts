import { isCode, type Logger, messageOf, redactAndCut, retryOf } from '../../base/index.ts';

import { patiently } from '../../kube/index.ts';

export interface DeletionFailuresOptions {
  readonly logger: Logger;
  /** Name of the backup, for the log. */
  readonly backup: string;
  readonly signal: AbortSignal;
  /** Total time limit for the retries of one deletion. A longer fault needs a person. */
  readonly patienceMs: number;
  /** Receives the reason for a wait, to show it to users. */
  readonly onWaiting?: (text: string) => void;
}

/** A status with thousands of failures is useless, and may not fit into its object. Our choice. */
const TOLD_MAX = 40;
const FIRST_DELAY_MS = 1000;
const DELAY_MS_MAX = 30_000;
/** A plugin's error mostly repeats its provider's answer: whether it is transient is unknown. */
const PLUGIN_CODES = ['PLUGIN_REFUSED', 'PLUGIN_GONE', 'PLUGIN_TIMEOUT'];
const PLUGIN_ATTEMPTS = 3;

function rethrown(error: unknown): never {
  if (isCode(error, ...PLUGIN_CODES)) throw Object.assign(error, { retry: 'backoff' });
  throw error;
}

/**
 * Runs the steps of one deletion. Transient errors are retried. Other errors are collected as
 * sentences for the status of the request, and the next step follows.
 */
export class DeletionFailures {
  readonly #options: DeletionFailuresOptions;
  readonly #told: string[] = [];
  #count = 0;
  #waitedMs = 0;

  constructor(options: DeletionFailuresOptions) {
    this.#options = options;
  }

  /** Undefined if the task failed for good. Throws the signal's reason and `LEADERSHIP_LOST`. */
  async attempt<T>(what: string, task: () => Promise<T>): Promise<T | undefined> {
    const { signal } = this.#options;
    try {
      return await this.patiently(what, task);
    } catch (error) {
      if (signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      this.fail(what, error);
      return undefined;
    }
  }

  /** Throws the error of the last try. */
  async patiently<T>(what: string, task: () => Promise<T>): Promise<T> {
    const { logger, backup, signal, patienceMs, onWaiting } = this.#options;
    const startMs = performance.now();
    let hasFailed = false;
    try {
      return await patiently(() => task().catch(rethrown), {
        budgetOf: (error) => ({
          attemptsMax: isCode(error, ...PLUGIN_CODES) ? PLUGIN_ATTEMPTS : Infinity,
          delayMsMax: DELAY_MS_MAX,
        }),
        firstDelayMs: Math.min(FIRST_DELAY_MS, patienceMs / 4),
        forMs: Math.max(0, patienceMs - this.#waitedMs),
        signal,
        onRetry: (error, attempt) => {
          hasFailed = true;
          const text = `${what}: ${redactAndCut(messageOf(error))}; it is tried again`;
          logger.warn({ backup, attempt, error: messageOf(error) }, `deletion: ${what}`);
          onWaiting?.(text);
        },
      });
    } catch (error) {
      signal.throwIfAborted();
      throw error;
    } finally {
      if (hasFailed) this.#waitedMs += performance.now() - startMs;
    }
  }

  fail(what: string, error: unknown): void {
    this.say(`${what}: ${redactAndCut(messageOf(error))}`);
    const { logger, backup } = this.#options;
    const fields = { backup, error: messageOf(error), isPassing: retryOf(error) === 'backoff' };
    logger.error(fields, `deletion: ${what}`);
  }

  say(text: string): void {
    this.#count++;
    if (this.#told.length < TOLD_MAX) this.#told.push(text);
  }

  get hasFailed(): boolean {
    return this.#count > 0;
  }

  /** Returns the failures so far and clears them. */
  take(): string[] {
    const told = this.#told.splice(0);
    const more = this.#count - told.length;
    this.#count = 0;
    return more > 0 ? [...told, `and ${more} more, which the log of the server names`] : told;
  }
}
