import { isCode, type Logger, messageOf, redactAndCut, retryOf } from '../../base/index.ts';

import { patiently } from '../../kube/index.ts';

export interface AttemptsOptions {
  readonly logger: Logger;
  /** Of the backup, for the log. */
  readonly backup: string;
  readonly signal: AbortSignal;
  /** For all waits of one deletion together: it is a few minutes' fault or one for a person. */
  readonly patienceMs: number;
  /** Told what is being waited for, so that others see it. */
  readonly onWaiting?: (text: string) => void;
}

/**
 * A status that lists thousands of failures helps nobody, and has to fit into its object. Our
 * choice.
 */
const TOLD_MAX = 40;
const FIRST_DELAY_MS = 1000;
const DELAY_MS_MAX = 30_000;
/**
 * Nobody can tell whether what a plugin says will pass: most of it is what its provider answered.
 */
const PLUGIN_CODES = ['PLUGIN_REFUSED', 'PLUGIN_GONE', 'PLUGIN_TIMEOUT'];
const PLUGIN_ATTEMPTS = 3;

function rethrown(error: unknown): never {
  if (isCode(error, ...PLUGIN_CODES)) throw Object.assign(error, { retry: 'backoff' });
  throw error;
}

/**
 * The steps of one deletion: what passes is tried again, and what does not is told and does not
 * keep the other steps from being taken. What is told are sentences for the status of the request.
 */
export class Attempts {
  readonly #options: AttemptsOptions;
  readonly #told: string[] = [];
  #count = 0;
  #waitedMs = 0;

  constructor(options: AttemptsOptions) {
    this.#options = options;
  }

  /** Undefined where it failed for good. Throws the reason of the signal, and `LEADERSHIP_LOST`. */
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

  /** Throws what the last try threw. */
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

  /** What has failed so far; it is forgotten here. */
  take(): string[] {
    const told = this.#told.splice(0);
    const more = this.#count - told.length;
    this.#count = 0;
    return more > 0 ? [...told, `and ${more} more, which the log of the server names`] : told;
  }
}
