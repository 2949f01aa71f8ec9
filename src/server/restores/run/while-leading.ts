import type { KubeClient } from '../../../kube/index.ts';
import type { RestoreRequest } from './contract.ts';

export interface Leading {
  /** Ends with the request's, and when this process does not lead any more. */
  readonly signal: AbortSignal;
  readonly assertLeading: () => void;
}

/**
 * The run ends at once when another process may lead: an item that cannot be made because of it has
 * not failed.
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

/** Each write is a leader's. */
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
