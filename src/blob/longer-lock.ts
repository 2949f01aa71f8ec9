import { isCode } from '../base/index.ts';

/**
 * Extends a lock. Services refuse to shorten a lock, each with its own error. If `isLocked` finds a
 * lock at least as strong, the refusal is ignored. If `isLocked` fails, the refusal is thrown.
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
