import { CodedError, isCode, messageOf, withRetry } from '../base/index.ts';
import { isUnauthorized, meaningOf } from '../kube/index.ts';

/** How long a right may be missing before a task fails. */
export const RIGHTS_MS = 300_000;

/**
 * A right may be missing for a moment during an upgrade of Velero or the start of an API server.
 * The table of answers distinguishes passing and permanent refusals. A quota may be full for some
 * minutes.
 */
export const isRightGone = (error: unknown): boolean =>
  isUnauthorized(error) && (meaningOf(error) === 'refused for now' || isQuotaFull(error));

/** The namespace's quota allows no more pods or claims until others are deleted. */
export const isQuotaFull = (error: unknown): boolean =>
  isCode(error, 'KUBE_FORBIDDEN') && messageOf(error).includes('exceeded quota');

const PAUSE_MS = 5000;

/**
 * Retries while the API server is away or a right is missing. These failures should not fail a
 * volume.
 */
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

/** Makes a missing right retryable, until {@link RIGHTS_MS} have passed. */
function waitingForRights<T>(task: () => Promise<T>): () => Promise<T> {
  let refusedMs: number | undefined;
  return async () => {
    try {
      return await task();
    } catch (error) {
      if (!isRightGone(error)) {
        refusedMs = undefined;
        throw error;
      }
      refusedMs ??= performance.now();
      if (!(error instanceof CodedError) || performance.now() - refusedMs >= RIGHTS_MS) throw error;
      const { code, facts } = error;
      throw new CodedError(code, error.message, { cause: error, facts, retry: 'backoff' });
    }
  };
}
