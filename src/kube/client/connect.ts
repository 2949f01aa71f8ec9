import type { Clock } from '../../base/index.ts';
import { KubeClient } from './client.ts';
import { accessOf } from './kubeconfig.ts';
import { Transport } from './transport.ts';

export interface ConnectOptions {
  /**
   * Path of a kubeconfig; without it KUBECONFIG, ~/.kube/config, then the pod's service account.
   */
  readonly kubeconfig?: string | undefined;
  readonly context?: string | undefined;
  readonly userAgent: string;
  /** The node's own, where it is not the system's. */
  readonly clock?: Clock | undefined;
  /** How long 401 and 403 are retried, which may pass. Left out: a person waits for the answer. */
  readonly refusedMs?: number | undefined;
}

/** A client of the cluster that the kubeconfig or the pod names. Throws `NO_CLUSTER`. */
export function connectToCluster(options: ConnectOptions): KubeClient {
  const { kubeconfig, context, userAgent, clock, refusedMs } = options;
  const access = accessOf(kubeconfig, context);
  return new KubeClient(new Transport(access, userAgent, clock, { refusedMs }));
}
