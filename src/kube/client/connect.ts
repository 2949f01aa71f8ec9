import type { Clock } from '../../base/index.ts';
import { KubeClient } from './client.ts';
import { accessOf } from './kubeconfig.ts';
import { Transport } from './transport.ts';

export interface ConnectOptions {
  /** Default: KUBECONFIG, then ~/.kube/config, then the pod's service account. */
  readonly kubeconfig?: string | undefined;
  readonly context?: string | undefined;
  readonly userAgent: string;
  /** The clock of the node; the system's if left out. */
  readonly clock?: Clock | undefined;
  /** How long 401 and 403 are retried. Left out if a person waits for the answer. */
  readonly refusedMs?: number | undefined;
}

/** A client for the cluster of the kubeconfig or the pod. Throws `NO_CLUSTER`. */
export function connectToCluster(options: ConnectOptions): KubeClient {
  const { kubeconfig, context, userAgent, clock, refusedMs } = options;
  const access = accessOf(kubeconfig, context);
  return new KubeClient(new Transport(access, userAgent, clock, { refusedMs }));
}
