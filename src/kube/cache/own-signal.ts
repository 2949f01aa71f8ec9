/**
 * Runs a task with its own signal that follows another one. `AbortSignal.any` would leak: if it has
 * a listener, it stays in memory as long as its source signal. An agent's signal lives for months.
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
