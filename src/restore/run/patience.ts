import { CodedError, isCode, withRetry } from '../../base/index.ts';

const FIRST_DELAY_MS = 500;
const DELAY_MS_MAX = 15_000;
/** An API server that is replaced is back sooner. Our choice. */
const PATIENCE_MS = 180_000;

/** Whether the API server did not take the request at all, or asks for it again. What its admission could not decide (500) is an answer. */
function isAway(error: unknown): boolean {
  if (!(error instanceof CodedError)) return false;
  const { httpStatus } = error.facts;
  switch (error.code) {
    case 'KUBE_THROTTLED':
    case 'KUBE_CONFLICT':
      return true;
    case 'KUBE_UNAVAILABLE':
      return httpStatus === undefined || [502, 503, 504].includes(Number(httpStatus));
    default:
      return false;
  }
}

/**
 * Asks an API server again that is away for a while: an item must not be missing because of that. A resource that has not come back once, such as one of
 * an aggregated server, is not waited for with each of its items.
 */
export class Patience {
  readonly #signal: AbortSignal;
  readonly #ms: number;
  readonly #given = new Set<string>();

  constructor(signal: AbortSignal, ms = PATIENCE_MS) {
    this.#signal = signal;
    this.#ms = ms;
  }

  /** `about`: what is waited for once only. `isAgain`: an earlier request may have been done, without an answer. */
  async ask<T>(about: string, task: (isAgain: boolean) => Promise<T>): Promise<T> {
    let isAgain = false;
    try {
      const answer = await withRetry(() => task(isAgain), {
        budgetOf: (error) => ({
          attemptsMax: isAway(error) && !this.#given.has(about) ? Infinity : 1,
          delayMsMax: DELAY_MS_MAX,
        }),
        firstDelayMs: FIRST_DELAY_MS,
        tryingMsMax: this.#ms,
        signal: this.#signal,
        onRetry: (error) => {
          isAgain ||= isCode(error, 'KUBE_UNAVAILABLE');
        },
      });
      this.#given.delete(about);
      return answer;
    } catch (error) {
      if (isAway(error) && !isCode(error, 'KUBE_CONFLICT')) this.#given.add(about);
      throw error;
    }
  }
}
