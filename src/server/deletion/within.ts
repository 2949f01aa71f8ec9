import { CodedError, isCanceled, untilAborted } from '../../base/index.ts';
import { withOwnSignal } from '../../kube/index.ts';

/**
 * Of a plugin: one that waits for ever must not keep a backup. Our choice: drivers delete within
 * minutes.
 */
export const CALL_MS_MAX = 10 * 60_000;

/**
 * Gives a task so long, also one that does not look at its signal: what hangs must not keep the
 * rest of a backup. Throws `NO_ANSWER`, and what the task throws.
 */
export async function within<T>(
  signal: AbortSignal,
  ms: number,
  task: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  return withOwnSignal(signal, async (own) => {
    const late = new CodedError('NO_ANSWER', `no answer within ${Math.ceil(ms / 60_000)} min`);
    const timer = setTimeout(() => {
      own.abort(late);
    }, ms);
    const running = task(own.signal);
    try {
      await untilAborted(own.signal, running);
      own.signal.throwIfAborted();
      return await running;
    } catch (error) {
      signal.throwIfAborted();
      throw own.signal.aborted && isCanceled(error) ? late : error;
    } finally {
      clearTimeout(timer);
    }
  });
}
