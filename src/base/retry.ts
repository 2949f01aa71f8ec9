import { setTimeout as sleep } from 'node:timers/promises';
import { isCode, type Retry } from './errors.ts';

export interface RetryOptions {
  attemptsMax: number;
  firstDelayMs: number;
  delayMsMax: number;
  signal?: AbortSignal | undefined;
  onRetry?: (error: unknown, attempt: number) => void;
}

/** Errors that nobody mapped are tried again: losing a backup to a hiccup is the worse mistake. */
export function retryOf(error: unknown): Retry {
  if (isCode(error, 'CANCELED') || (error instanceof Error && error.name === 'AbortError')) {
    return 'never';
  }
  if (typeof error === 'object' && error !== null && 'retry' in error) {
    return error.retry === 'backoff' ? 'backoff' : 'never';
  }
  return error instanceof TypeError || error instanceof RangeError ? 'never' : 'backoff';
}

/** Runs the task again while its error says so; doubling delays with jitter. */
export async function withRetry<T>(task: () => Promise<T>, options: RetryOptions): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    options.signal?.throwIfAborted();
    try {
      return await task();
    } catch (error) {
      if (retryOf(error) === 'never' || attempt >= options.attemptsMax) throw error;
      options.onRetry?.(error, attempt);
      const delay = Math.min(options.delayMsMax, options.firstDelayMs * 2 ** (attempt - 1));
      await sleep(delay * (0.5 + Math.random() / 2), undefined, {
        ...(options.signal && { signal: options.signal }),
      });
    }
  }
}
