import { dataMoversOf as moversIn } from '../agent/index.ts';
import { environment } from '../config/index.ts';
import { connectToCluster, type KubeClient } from '../kube/index.ts';
import { VERSION } from './version.ts';

/** How commands find the cluster, and what of it they look at. */
export interface ClusterFlags {
  kubeconfig?: string;
  context?: string;
  namespace?: string;
}

const USER_AGENT = `longshore-node-agent/${VERSION}`;

/** The cluster that the flags or the pod name, and the namespace that Velero is in. Throws `NO_CLUSTER`. */
export function clusterOf(flags: ClusterFlags): { client: KubeClient; namespace: string } {
  const { kubeconfig, context, namespace } = flags;
  const client = connectToCluster({ kubeconfig, context, userAgent: USER_AGENT });
  return { client, namespace: namespace ?? environment.veleroNamespace };
}

/** Values of `spec.datamover` that are served. */
export const dataMoversOf = ({ dataMovers }: { dataMovers: string }): Set<string> =>
  moversIn(dataMovers);
