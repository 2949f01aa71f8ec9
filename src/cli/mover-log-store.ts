import type { MoverLogStore } from '../agent/index.ts';
import { openBucket } from '../blob/index.ts';
import { environment } from '../config/index.ts';
import type { KubeClient } from '../kube/index.ts';
import { loadLocation, openLocationBucket } from '../repository-access/index.ts';

export interface MoverLogStoreOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  /** For credentials. */
  readonly directory: string;
}

/** The buckets of locations, for the logs of data movers. Throws `NO_LOCATION`, and what reading and opening a location throws. */
export function moverLogStore({
  client,
  namespace,
  directory,
}: MoverLogStoreOptions): MoverLogStore {
  return {
    async open(name, signal) {
      const location = await loadLocation(name, { client, namespace, signal });
      if (location.spec.accessMode === 'ReadOnly') return undefined;
      // An agent that has no log to keep does without it.
      const { MoverLogArchive } = await import('../archive/index.ts');
      const opened = await openLocationBucket(
        location,
        {
          ...{ client, namespace, directory, signal },
          defaultCredentials: (kind) => environment.credentialsFile(kind),
        },
        (place) => openBucket(place),
      );
      const logs = new MoverLogArchive(opened.bucket);
      return {
        add: (log, options) => logs.add(log, options),
        remove: (log, options) => logs.remove(log, options),
        [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
      };
    },
  };
}
