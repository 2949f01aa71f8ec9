// The part that reads kubeconfigs; the package's index would load every generated client.
import { KubeConfig } from '@kubernetes/client-node/dist/config.js';
import { type Clock, CodedError, messageOf } from '../../base/index.ts';
import { KubeClient } from './client.ts';
import { Transport } from './transport.ts';

export interface ConnectOptions {
  /** Path of a kubeconfig; without it KUBECONFIG, ~/.kube/config, then the pod's service account. */
  readonly kubeconfig?: string | undefined;
  readonly context?: string | undefined;
  readonly userAgent: string;
  /** The node's own, where it is not the system's. */
  readonly clock?: Clock | undefined;
}

/** A client of the cluster that the kubeconfig or the pod names. Throws `NO_CLUSTER`. */
export function connectToCluster(options: ConnectOptions): KubeClient {
  const { kubeconfig, context, userAgent, clock } = options;
  const config = new KubeConfig();
  try {
    if (kubeconfig === undefined) config.loadFromDefault();
    else config.loadFromFile(kubeconfig);
    if (context !== undefined) config.setCurrentContext(context);
  } catch (cause) {
    const message = `cannot read the kubeconfig: ${messageOf(cause)}`;
    throw new CodedError('NO_CLUSTER', message, { cause });
  }
  return new KubeClient(new Transport(config, userAgent, clock));
}
