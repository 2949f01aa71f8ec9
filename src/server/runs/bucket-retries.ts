import { patiently as retried } from '../../kube/index.ts';
import { CodedError, type Logger, messageOf, retryOf } from '../../base/index.ts';

/** Longest wait for a bucket. Our choice: longer than services restart, under a night. */
const PATIENCE_MS = 20 * 60_000;
const FIRST_DELAY_MS = 2000;
const DELAY_MS_MAX = 30_000;

export interface PatienceOptions {
  readonly what: string;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
}

/** A backup of hours must survive a bucket that is away for minutes. */
export async function patiently<T>(
  task: () => Promise<T>,
  { what, logger, signal, patienceMs = PATIENCE_MS }: PatienceOptions,
): Promise<T> {
  return retried(task, {
    delayMsMax: DELAY_MS_MAX,
    firstDelayMs: Math.min(FIRST_DELAY_MS, patienceMs / 4),
    forMs: patienceMs,
    signal,
    onRetry: (error, attempt) => {
      logger.warn({ error: messageOf(error), attempt }, `cannot ${what}, and try again`);
    },
  }).catch((error: unknown) => {
    signal.throwIfAborted();
    if (retryOf(error) === 'never') throw error;
    const text = `cannot ${what}: ${messageOf(error)}`;
    throw new CodedError('STILL_AWAY', text, { cause: error });
  });
}
