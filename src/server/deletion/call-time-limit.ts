import { CodedError, isCanceled, untilAborted } from '../../base/index.ts';
import { withOwnSignal } from '../../kube/index.ts';

/** Time limit for one call of a plugin. Our choice: drivers delete within minutes. */
export const CALL_MS_MAX = 10 * 60_000;

/**
 * Runs a task with a time limit, even if the task ignores its signal. A hanging task must not block
 * the rest of the deletion. Throws `NO_ANSWER`, and the errors of the task.
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
