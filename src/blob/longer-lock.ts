import { isCode } from '../base/index.ts';

/**
 * Makes a lock longer. Services refuse to make one shorter, in words of their own: that is no error
 * where `isLocked` finds the lock that was asked for, or a stronger one. Where nobody can tell, the
 * refusal stands.
 */
export async function unlessLocked(
  extend: () => Promise<unknown>,
  isLocked: () => Promise<boolean>,
  signal?: AbortSignal,
): Promise<void> {
  try {
    await extend();
  } catch (error) {
    signal?.throwIfAborted();
    if (!isCode(error, 'STORAGE_DENIED', 'STORAGE_FAILED')) throw error;
    if (!(await isLocked().catch(() => false))) {
      signal?.throwIfAborted();
      throw error;
    }
  }
}
