import { environment } from '../config/index.ts';
import { BUILT_IN_MOVERS, connectToCluster, type KubeClient } from '../kube/index.ts';
import type { ClusterFlags } from './node-agent.ts';
import { VERSION } from './version.ts';

const USER_AGENT = `longshore-node-agent/${VERSION}`;

/** The cluster that the flags or the pod name, and the namespace that Velero is in. Throws `NO_CLUSTER`. */
export function clusterOf(flags: ClusterFlags): { client: KubeClient; namespace: string } {
  const { kubeconfig, context, namespace } = flags;
  const client = connectToCluster({ kubeconfig, context, userAgent: USER_AGENT });
  return { client, namespace: namespace ?? environment.veleroNamespace };
}

/** Values of `spec.datamover` that are served. */
export function dataMoversOf({ dataMovers }: ClusterFlags): Set<string> {
  const names = new Set(dataMovers.split(',').map((name) => name.trim()));
  if (names.has('velero')) for (const name of BUILT_IN_MOVERS) names.add(name);
  return names;
}
