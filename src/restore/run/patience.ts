import { CodedError, isCode, withRetry } from '../../base/index.ts';

const FIRST_DELAY_MS = 500;
const DELAY_MS_MAX = 15_000;
/** An API server that is replaced is back sooner. Our choice. */
const PATIENCE_MS = 180_000;
/** Tries of one request in 15 s. Whoever writes at the same moment, as a quota that is counted, is done by then. Our choice. */
const CONFLICTS_MAX = 6;

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

/** What {@link Patience.ask} waits for once: an aggregated server has all kinds of its group. */
export const servedBy = ({ group, plural }: { group: string; plural: string }): string =>
  group === '' ? plural : group;

/**
 * Asks an API server again that is away for a while: an item must not be missing because of that. One that has not come back once, such as an
 * aggregated server, is not waited for with each of its items. A conflict that stays is no conflict: a webhook may refuse in that way.
 */
export class Patience {
  readonly #signal: AbortSignal;
  readonly #ms: number;
  readonly #firstDelayMs: number;
  readonly #given = new Set<string>();

  /** `firstDelayMs`: less in tests. */
  constructor(signal: AbortSignal, ms = PATIENCE_MS, firstDelayMs = FIRST_DELAY_MS) {
    this.#signal = signal;
    this.#ms = ms;
    this.#firstDelayMs = firstDelayMs;
  }

  /** `about`: what is waited for once only. `isAgain`: an earlier request may have been done, without an answer. */
  async ask<T>(about: string, task: (isAgain: boolean) => Promise<T>): Promise<T> {
    let isAgain = false;
    let conflicts = 0;
    const isOver = (error: unknown): boolean =>
      isCode(error, 'KUBE_CONFLICT') && ++conflicts >= CONFLICTS_MAX;
    try {
      const answer = await withRetry(() => task(isAgain), {
        budgetOf: (error) => ({
          attemptsMax: isAway(error) && !this.#given.has(about) && !isOver(error) ? Infinity : 1,
          delayMsMax: DELAY_MS_MAX,
        }),
        firstDelayMs: this.#firstDelayMs,
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
