import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCanceled, type Retry } from './errors.ts';

export interface RetryBudget {
  attemptsMax: number;
  delayMsMax: number;
  /** For this error, instead of that of the options. */
  tryingMsMax?: number;
}

export interface RetryOptions {
  /** May depend on what went wrong last. */
  budgetOf: (error: unknown) => RetryBudget;
  firstDelayMs: number;
  /** No pause ends later than this after the first try began; tests lower it. */
  tryingMsMax?: number;
  signal?: AbortSignal | undefined;
  onRetry?: (error: unknown, attempt: number) => void;
}

/** Errors that nobody mapped are tried again: losing a backup to a hiccup is the worse mistake. */
export function retryOf(error: unknown): Retry {
  if (isCanceled(error)) return 'never';
  if (typeof error === 'object' && error !== null && 'retry' in error) {
    return error.retry === 'backoff' ? 'backoff' : 'never';
  }
  return error instanceof TypeError || error instanceof RangeError ? 'never' : 'backoff';
}

/**
 * Runs the task again while its error says so; doubling delays with jitter, never shorter than what the
 * error's fact `retryAfterMs` asks for. When the budget is spent the error tells how often it was tried.
 */
export async function withRetry<T>(task: () => Promise<T>, options: RetryOptions): Promise<T> {
  const { tryingMsMax = TRYING_MS_MAX } = options;
  const startMs = performance.now();
  for (let attempt = 1; ; attempt++) {
    options.signal?.throwIfAborted();
    try {
      return await task();
    } catch (error) {
      if (retryOf(error) === 'never') throw error;
      const budget = options.budgetOf(error);
      const { attemptsMax, delayMsMax } = budget;
      if (attempt >= attemptsMax) throw spent(error, attempt, performance.now() - startMs);
      const backoffMs = Math.min(delayMsMax, options.firstDelayMs * 2 ** (attempt - 1));
      const delayMs = Math.max(backoffMs * (0.5 + Math.random() / 2), askedDelayMs(error));
      const elapsedMs = performance.now() - startMs;
      if (elapsedMs + delayMs > (budget.tryingMsMax ?? tryingMsMax))
        throw spent(error, attempt, elapsedMs);
      options.onRetry?.(error, attempt);
      await sleep(delayMs, undefined, { ...(options.signal && { signal: options.signal }) });
    }
  }
}

/**
 * Our choice: with a last try of a minute it ends before a move is taken for stalled (mover/progress.ts), and then the error
 * says what the service answered.
 */
const TRYING_MS_MAX = 25 * 60_000;
/** A service that asks for more is not waited for longer at once. Our choice. */
const ASKED_DELAY_MS_MAX = 300_000;

/** What a busy service asked for: earlier tries would only be refused, and count as abuse. */
function askedDelayMs(error: unknown): number {
  const asked = error instanceof CodedError ? error.facts.retryAfterMs : undefined;
  return typeof asked === 'number' ? Math.min(asked, ASKED_DELAY_MS_MAX) : 0;
}

function spent(error: unknown, attempts: number, ms: number): unknown {
  if (!(error instanceof CodedError) || attempts === 1) return error;
  const text = `${error.message} (tried ${attempts} times in ${Math.ceil(ms / 1000)} s)`;
  const { cause, retry } = error;
  const facts = { ...error.facts, tries: attempts };
  return new CodedError(error.code, text, { cause, retry, facts });
}
