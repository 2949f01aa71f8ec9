import { setTimeout as sleep } from 'node:timers/promises';

/**
 * Asks every so often, first at once. False where it was not so in time. Throws what the question
 * throws, and the reason of the signal.
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
