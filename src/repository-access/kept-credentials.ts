import { type Logger, messageOf } from '../base/index.ts';

/** Tokens are renewed minutes before they end. Our choice. */
const INTERVAL_MS = 120_000;

/**
 * Loads the Secrets of a location again and again, for as long as work with it takes: a storage
 * that is refused reads its credentials from their file again, and has the new ones then. Where
 * they cannot be read, those of before are as good. Returns what ends it.
 */
export function keepCredentials(
  load: (signal: AbortSignal) => Promise<unknown>,
  logger: Logger,
): () => void {
  const stop = new AbortController();
  const { signal } = stop;
  let isLoading = false;
  const loadAgain = async (): Promise<void> => {
    if (isLoading) return;
    isLoading = true;
    try {
      await load(signal);
    } catch (error) {
      if (signal.aborted) return;
      logger.warn(
        { error: messageOf(error) },
        'the credentials of the location were not read again',
      );
    } finally {
      isLoading = false;
    }
  };
  const timer = setInterval(() => void loadAgain(), INTERVAL_MS);
  timer.unref();
  return () => {
    clearInterval(timer);
    stop.abort();
  };
}
