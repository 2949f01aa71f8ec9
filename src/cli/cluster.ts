import { dataMoversOf as moversIn } from '../agent/index.ts';
import { environment } from '../config/index.ts';
import { connectToCluster, type KubeClient } from '../kube/index.ts';
import type { ClusterFlags, ServerFlags } from './node-agent.ts';
import { VERSION } from './version.ts';

const USER_AGENT = `longshore-node-agent/${VERSION}`;

/** The cluster that the flags or the pod name, and the namespace that Velero is in. Throws `NO_CLUSTER`. */
export function clusterOf(flags: ClusterFlags): { client: KubeClient; namespace: string } {
  const { kubeconfig, context, namespace } = flags;
  const client = connectToCluster({ kubeconfig, context, userAgent: USER_AGENT });
  return { client, namespace: namespace ?? environment.veleroNamespace };
}

/** Values of `spec.datamover` that are served. */
export const dataMoversOf = ({ dataMovers }: ServerFlags): Set<string> => moversIn(dataMovers);
