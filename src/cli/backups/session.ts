import type { KubeClient } from '../../kube/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal } from '../context.ts';

/** The cluster of a verb, until the verb ends. */
export interface Session {
  readonly client: KubeClient;
  /** Velero's namespace. */
  readonly namespace: string;
  /** Aborts on Ctrl-C. */
  readonly signal: AbortSignal;
}

export async function withSession<T>(
  flags: ClusterFlags,
  work: (session: Session) => Promise<T>,
  stopping?: string,
): Promise<T> {
  const { client, namespace } = clusterOf(flags, 'longshore');
  const interrupt = interruptSignal(undefined, stopping);
  try {
    return await work({ client, namespace, signal: interrupt.signal });
  } finally {
    interrupt.dispose();
    client.close();
  }
}
