/**
 * Runs a task under a signal of its own that follows another one. Not `AbortSignal.any`: one that
 * was listened to stays in memory for as long as the signal it follows, and an agent's lives for
 * months.
 */
export async function withOwnSignal<T>(
  signal: AbortSignal | undefined,
  task: (own: AbortController) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted();
  const own = new AbortController();
  const follow = (): void => {
    own.abort(signal?.reason);
  };
  signal?.addEventListener('abort', follow, { once: true });
  try {
    return await task(own);
  } finally {
    signal?.removeEventListener('abort', follow);
  }
}
