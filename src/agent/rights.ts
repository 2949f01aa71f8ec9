import { CodedError, isCode, messageOf, withRetry } from '../base/index.ts';
import { isUnauthorized, meaningOf } from '../kube/index.ts';

/** How long a right may be missing before what needs it fails. */
export const RIGHTS_MS = 300_000;

/**
 * Rights may be gone for a moment while Velero is upgraded, or while an API server starts. The
 * table of answers tells these refusals from those that stay. A quota may be full for some minutes.
 */
export const isRightGone = (error: unknown): boolean =>
  isUnauthorized(error) && (meaningOf(error) === 'refused for now' || isQuotaFull(error));

/**
 * A quota of the namespace allows no more pods or claims: there is room again once others are gone.
 */
export const isQuotaFull = (error: unknown): boolean =>
  isCode(error, 'KUBE_FORBIDDEN') && messageOf(error).includes('exceeded quota');

const PAUSE_MS = 5000;

/**
 * Retries while the API server is away, or a right is missing: neither is a reason to fail a
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

/** The task, to be tried again while only a right is missing, for as long as it may be. */
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
