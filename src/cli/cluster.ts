import { dataMoversOf as moversIn } from '../agent/index.ts';
import { environment } from '../config/index.ts';
import { type ConnectOptions, connectToCluster, type KubeClient } from '../kube/index.ts';
import { VERSION } from './version.ts';

/** How commands find the cluster, and what of it they look at. */
export interface ClusterFlags {
  kubeconfig?: string;
  context?: string;
  namespace?: string;
}

/**
 * The cluster that the flags or the pod name, and the namespace that Velero is in. Throws
 * `NO_CLUSTER`.
 */
export function clusterOf(
  flags: ClusterFlags,
  program = 'longshore-node-agent',
  { refusedMs }: Pick<ConnectOptions, 'refusedMs'> = {},
): { client: KubeClient; namespace: string } {
  const { kubeconfig, context, namespace } = flags;
  const userAgent = `${program}/${VERSION}`;
  const client = connectToCluster({ kubeconfig, context, userAgent, refusedMs });
  return { client, namespace: namespace ?? environment.veleroNamespace };
}

/** Values of `spec.datamover` that are served. */
export const dataMoversOf = ({ dataMovers }: { dataMovers: string }): Set<string> =>
  moversIn(dataMovers);
