import { withRetry } from '../base/index.ts';
import { waitingForRights } from './rights.ts';

const PAUSE_MS = 5000;

/** An API server that is away for a while, or a right that is missing for a moment, is no reason to give a volume up. */
export function askPatiently<T>(
  task: () => Promise<T>,
  { timeoutMs, signal }: { timeoutMs: number; signal: AbortSignal },
): Promise<T> {
  const attemptsMax = Math.ceil(timeoutMs / PAUSE_MS);
  return withRetry(waitingForRights(task), {
    budgetOf: () => ({ attemptsMax, delayMsMax: PAUSE_MS }),
    firstDelayMs: 200,
    signal,
  });
}
