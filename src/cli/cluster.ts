import { dataMoversOf as moversIn } from '../agent/index.ts';
import { environment } from '../config/index.ts';
import { type ConnectOptions, connectToCluster, type KubeClient } from '../kube/index.ts';
import { VERSION } from './version.ts';

/** The options of {@link withClusterOptions}. */
export interface ClusterFlags {
  kubeconfig?: string;
  context?: string;
  namespace?: string;
}

/**
 * A client for the cluster of the flags or the pod, and Velero's namespace. Throws `NO_CLUSTER`.
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

/** The served values of `spec.datamover`. */
export const dataMoversOf = ({ dataMovers }: { dataMovers: string }): Set<string> =>
  moversIn(dataMovers);
