import type { KubeClient } from '../../../kube/index.ts';
import type { RestoreRequest } from './contract.ts';

export interface Leading {
  /** Aborted with the request's signal, or when this process no longer leads. */
  readonly signal: AbortSignal;
  readonly assertLeading: () => void;
}

/**
 * Ends the run at once when another process may lead. An item that fails for this reason does not
 * count as failed.
 */
export function whileLeading({
  assertLeading,
  signal,
}: Pick<RestoreRequest, 'assertLeading' | 'signal'>): Leading {
  const lost = new AbortController();
  return {
    signal: AbortSignal.any([signal, lost.signal]),
    assertLeading: () => {
      try {
        assertLeading();
      } catch (error) {
        lost.abort(error);
        throw error;
      }
    },
  };
}

type ItemClient = Pick<KubeClient, 'find' | 'collect' | 'create' | 'patch'>;

/** Checks the leadership before each write. */
export const leadingClient = (client: ItemClient, assertLeading: () => void): ItemClient => ({
  find: (...given) => client.find(...given),
  collect: (...given) => client.collect(...given),
  create: (...given) => {
    assertLeading();
    return client.create(...given);
  },
  patch: (...given) => {
    assertLeading();
    return client.patch(...given);
  },
});
