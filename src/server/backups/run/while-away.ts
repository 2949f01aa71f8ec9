import { isCode, type Logger, retryOf } from '../../../base/index.ts';
import type { KubeClient } from '../../../kube/index.ts';
import { patiently } from './patience.ts';

export interface WhileAwayOptions {
  readonly client: Pick<KubeClient, 'raw' | 'listPage' | 'find'>;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly patienceMs?: number | undefined;
}

/** How long the API server may be away while a backup waits for it. Our choice: a control plane is replaced in less. */
const PATIENCE_MS = 20 * 60_000;

/**
 * A client that waits for an API server that is away, so that no part of a backup is missing because of it. A kind whose own server does not
 * answer is told at once: the API server itself does then.
 */
export function whileAway({
  client,
  logger,
  signal,
  patienceMs = PATIENCE_MS,
}: WhileAwayOptions): Pick<KubeClient, 'listPage' | 'find'> {
  const wait = async <T>(task: () => Promise<T>): Promise<T> => {
    try {
      return await task();
    } catch (error) {
      signal.throwIfAborted();
      if (!isCode(error, 'KUBE_UNAVAILABLE') || retryOf(error) === 'never') throw error;
      if (await answers()) throw error;
      const about = { what: 'reach the API server', logger, signal, patienceMs };
      await patiently(() => client.raw({ method: 'GET', path: '/version', signal }), about);
      return task();
    }
  };
  const answers = async (): Promise<boolean> => {
    try {
      await client.raw({ method: 'GET', path: '/version', signal });
      return true;
    } catch {
      signal.throwIfAborted();
      return false;
    }
  };
  return {
    listPage: (resource, options) => wait(() => client.listPage(resource, options)),
    find: (resource, ref, options) => wait(() => client.find(resource, ref, options)),
  };
}
