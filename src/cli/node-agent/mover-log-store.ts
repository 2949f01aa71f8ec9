import type { MoverLogStore } from '../../agent/index.ts';
import type { Logger } from '../../base/index.ts';
import { openBucket } from '../../blob/index.ts';
import { environment, isWriteOnce } from '../../config/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { loadLocation, openLocationBucket, secretsOf } from '../../repository-access/index.ts';

export interface MoverLogStoreOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** For credentials files. */
  readonly directory: string;
}

/** The buckets of locations, for logs of data movers. Throws `NO_LOCATION`. */
export function moverLogStore({
  client,
  logger,
  namespace,
  directory,
}: MoverLogStoreOptions): MoverLogStore {
  /** Locations with unreadable Secrets that are already in the log. */
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
      // Loaded late: an agent without logs to keep does not need it.
      const { bucketOf, MoverLogArchive } = await import('../../archive/index.ts');
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

/** Asks for the right before reading, so that audit logs show no refused reads. */
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
