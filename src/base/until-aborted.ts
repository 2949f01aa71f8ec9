/**
 * Waits for the task or the abort, whichever comes first. The task may run on. Removes its listener
 * from the signal, which may live for months. Throws the task's error.
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
