import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCanceled, type Retry } from './errors.ts';

export interface RetryBudget {
  attemptsMax: number;
  delayMsMax: number;
  /** Overrides the option for this error. */
  tryingMsMax?: number;
}

export interface BackoffOptions {
  /** The delay after the first failure. */
  readonly firstMs: number;
  readonly maxMs: number;
  /** The random share of the delay, so that many clients do not retry at once. */
  readonly jitter?: number;
  /** Between 0 and 1. */
  readonly random?: () => number;
}

/** More doublings would exceed any limit. */
const DOUBLINGS_MAX = 30;

/** The delay before the next retry. `failures` counts consecutive failures, at least 1. */
export function backoffMs(failures: number, options: BackoffOptions): number {
  const { firstMs, maxMs, jitter = 0, random = Math.random } = options;
  const mostMs = Math.min(maxMs, firstMs * 2 ** Math.min(failures - 1, DOUBLINGS_MAX));
  return jitter === 0 ? mostMs : mostMs * (1 - jitter + random() * jitter);
}

export interface RetryOptions {
  /** Errors are thrown at once if this returns false. */
  passes?: (error: unknown) => boolean;
  /** The limits of retries, which may depend on the last error. */
  budgetOf: (error: unknown) => RetryBudget;
  firstDelayMs: number;
  /** No delay ends later than this after the start. Tests lower it. */
  tryingMsMax?: number;
  signal?: AbortSignal | undefined;
  onRetry?: (error: unknown, attempt: number) => void;
}

/** Unknown errors are retried: losing a backup to a short outage is the worse mistake. */
export function retryOf(error: unknown): Retry {
  if (isCanceled(error)) return 'never';
  if (typeof error === 'object' && error !== null && 'retry' in error) {
    return error.retry === 'backoff' ? 'backoff' : 'never';
  }
  return error instanceof TypeError || error instanceof RangeError ? 'never' : 'backoff';
}

/**
 * Runs the task, and retries it while the error allows this. Delays double, with jitter, and are at
 * least the error's fact `retryAfterMs`. After the last try, the error says how often it was tried.
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
 * Our choice: with a last try of a minute, this ends before the move counts as stalled
 * (mover/progress.ts). Then the error contains the service's response.
 */
const TRYING_MS_MAX = 25 * 60_000;
/** Longer requested delays are shortened to this. Our choice. */
const ASKED_DELAY_MS_MAX = 300_000;

/** The delay requested by a busy service. Earlier retries would be refused and count as abuse. */
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
