import type { MoverLogStore } from '../agent/index.ts';
import type { Logger } from '../base/index.ts';
import { openBucket } from '../blob/index.ts';
import { environment, isWriteOnce } from '../config/index.ts';
import type { KubeClient } from '../kube/index.ts';
import { loadLocation, openLocationBucket, secretsOf } from '../repository-access/index.ts';

export interface MoverLogStoreOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** For credentials. */
  readonly directory: string;
}

/**
 * The buckets of locations, for the logs of data movers. Throws `NO_LOCATION`, and what reading and
 * opening a location throws.
 */
export function moverLogStore({
  client,
  logger,
  namespace,
  directory,
}: MoverLogStoreOptions): MoverLogStore {
  /** Locations whose Secrets this process may not read, as it has said. */
  const told = new Set<string>();
  return {
    async open(name, signal) {
      const location = await loadLocation(name, { client, namespace, signal });
      if (location.spec.accessMode === 'ReadOnly') return undefined;
      for (const secret of secretsOf(location)) {
        if (await mayRead(secret, { client, namespace, signal })) continue;
        if (!told.has(name)) logger.info({ location: name, secret }, NOT_KEPT);
        told.add(name);
        return undefined;
      }
      // An agent that has no log to keep does without it.
      const { bucketOf, MoverLogArchive } = await import('../archive/index.ts');
      const opened = await openLocationBucket(
        location,
        {
          client,
          namespace,
          directory,
          signal,
          defaultCredentials: (kind) => environment.credentialsFile(kind),
        },
        async (place) =>
          bucketOf(await openBucket(place), { isWriteOnce: isWriteOnce(location), logger }),
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

const NOT_KEPT =
  'logs of data movers are not kept in the bucket of this location, whose Secret the agent may not read (docs/operating.md)';

/** Asked first, so that clusters that note what was refused have nothing to note. */
async function mayRead(
  name: string,
  { client, namespace, signal }: { client: KubeClient; namespace: string; signal: AbortSignal },
): Promise<boolean> {
  const resourceAttributes = { namespace, verb: 'get', group: '', resource: 'secrets', name };
  const { status } = (await client.raw({
    method: 'POST',
    path: '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
    body: {
      apiVersion: 'authorization.k8s.io/v1',
      kind: 'SelfSubjectAccessReview',
      spec: { resourceAttributes },
    },
    signal,
  })) as { status?: { allowed?: boolean } };
  return status?.allowed === true;
}
