import { CodedError, isCanceled, messageOf } from '../base/index.ts';
import type { PersistentVolumeClaim } from '../kube/index.ts';

export const isBlockClaim = ({ spec }: PersistentVolumeClaim): boolean =>
  spec.volumeMode === 'Block';

/** Adds the failed step to errors, as Velero does. A cancel stays a cancel. */
export async function step<T>(prefix: string, task: () => Promise<T>): Promise<T> {
  try {
    return await task();
  } catch (cause) {
    if (isCanceled(cause)) throw cause;
    const text = messageOf(cause);
    const message = text.startsWith(prefix) ? text : `${prefix}: ${text}`;
    const retry = cause instanceof CodedError ? cause.retry : 'never';
    throw new CodedError(cause instanceof CodedError ? cause.code : 'EXPOSE_FAILED', message, {
      cause,
      retry,
    });
  }
}
