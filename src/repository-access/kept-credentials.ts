import { type Logger, messageOf } from '../base/index.ts';

/** Tokens are renewed minutes before they expire. Our choice. */
const INTERVAL_MS = 120_000;

/**
 * Reloads the Secrets of a location periodically. A storage whose request is refused reads its
 * credentials file again, and gets the new credentials. If a reload fails, the old credentials
 * stay. Returns a function that stops it.
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
