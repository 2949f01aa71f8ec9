/**
 * Waits for a task, or until the signal aborts, whichever comes first; the task goes on. Nothing of
 * it stays with the signal, which may live for months. Throws what the task throws.
 */
export async function untilAborted(signal: AbortSignal, task: Promise<unknown>): Promise<void> {
  if (signal.aborted) {
    task.catch(() => undefined);
    return;
  }
  let leave = (): void => undefined;
  const aborted = new Promise<void>((resolve) => {
    leave = resolve;
  });
  signal.addEventListener('abort', leave, { once: true });
  try {
    await Promise.race([task, aborted]);
  } finally {
    signal.removeEventListener('abort', leave);
  }
}
