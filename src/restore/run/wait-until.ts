import { setTimeout as sleep } from 'node:timers/promises';

/**
 * Polls a condition, first at once. Returns false after the time-out. Throws errors of the
 * condition, and the reason of the signal.
 */
export async function untilTrue(
  question: () => Promise<boolean>,
  options: {
    readonly timeoutMs: number;
    readonly pollMs: number;
    readonly signal: AbortSignal;
  },
): Promise<boolean> {
  const untilMs = performance.now() + options.timeoutMs;
  for (;;) {
    options.signal.throwIfAborted();
    if (await question()) return true;
    if (performance.now() >= untilMs) return false;
    await sleep(options.pollMs, undefined, { signal: options.signal });
  }
}
