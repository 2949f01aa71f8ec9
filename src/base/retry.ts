import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCanceled, type Retry } from './errors.ts';

export interface RetryBudget {
  attemptsMax: number;
  delayMsMax: number;
  /** For this error, instead of that of the options. */
  tryingMsMax?: number;
}

export interface BackoffOptions {
  /** After the first failure. */
  readonly firstMs: number;
  readonly maxMs: number;
  /** The share of the delay that is left to chance, so that many do not come back at once. */
  readonly jitter?: number;
  /** Between 0 and 1. */
  readonly random?: () => number;
}

/** More doublings would exceed every bound. */
const DOUBLINGS_MAX = 30;

/** The delay before the next try. `failures`: in a row, at least 1. */
export function backoffMs(failures: number, options: BackoffOptions): number {
  const { firstMs, maxMs, jitter = 0, random = Math.random } = options;
  const mostMs = Math.min(maxMs, firstMs * 2 ** Math.min(failures - 1, DOUBLINGS_MAX));
  return jitter === 0 ? mostMs : mostMs * (1 - jitter + random() * jitter);
}

export interface RetryOptions {
  /** Errors for which this is false are thrown at once. */
  passes?: (error: unknown) => boolean;
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
 * Runs the task again while its error says so; doubling delays with jitter, never shorter than what
 * the error's fact `retryAfterMs` asks for. When the budget is spent the error tells how often it
 * was tried.
 */
export async function withRetry<T>(task: () => Promise<T>, options: RetryOptions): Promise<T> {
  const { tryingMsMax = TRYING_MS_MAX } = options;
  const startMs = performance.now();
  for (let attempt = 1; ; attempt++) {
    options.signal?.throwIfAborted();
    try {
      return await task();
    } catch (error) {
      if (retryOf(error) === 'never' || options.passes?.(error) === false) throw error;
      const budget = options.budgetOf(error);
      const { attemptsMax, delayMsMax } = budget;
      if (attempt >= attemptsMax) throw spent(error, attempt, performance.now() - startMs);
      const limits = { firstMs: options.firstDelayMs, maxMs: delayMsMax, jitter: 0.5 };
      const delayMs = Math.max(backoffMs(attempt, limits), askedDelayMs(error));
      const elapsedMs = performance.now() - startMs;
      if (elapsedMs + delayMs > (budget.tryingMsMax ?? tryingMsMax))
        throw spent(error, attempt, elapsedMs);
      options.onRetry?.(error, attempt);
      await sleep(delayMs, undefined, { ...(options.signal && { signal: options.signal }) });
    }
  }
}

/**
 * Our choice: with a last try of a minute it ends before a move is taken for stalled
 * (mover/progress.ts), and then the error says what the service answered.
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
