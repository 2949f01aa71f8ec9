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
  /** How long 401 and 403 are retried, which may pass. Left out: a person waits for the answer. */
  readonly refusedMs?: number | undefined;
}

/** A client of the cluster that the kubeconfig or the pod names. Throws `NO_CLUSTER`. */
export function connectToCluster(options: ConnectOptions): KubeClient {
  const { kubeconfig, context, userAgent, clock, refusedMs } = options;
  const config = new KubeConfig();
  /** The first one, also where the environment names it. */
  let file = kubeconfig;
  /** KUBECONFIG may name several: the others are merged into the first. */
  let loaded = 0;
  const load = config.loadFromFile.bind(config);
  config.loadFromFile = (name, ...more) => {
    file = name;
    load(name, ...more);
    loaded++;
  };
  const merge = config.mergeConfig.bind(config);
  config.mergeConfig = (...other) => {
    merge(...other);
    loaded++;
  };
  try {
    if (kubeconfig === undefined) config.loadFromDefault();
    else config.loadFromFile(kubeconfig);
  } catch (cause) {
    const which = loaded > 0 ? ` number ${loaded + 1} of KUBECONFIG` : file && ` ${file}`;
    const message = `cannot read the kubeconfig${which ?? ''}: ${messageOf(cause)}`;
    throw new CodedError('NO_CLUSTER', message, { cause });
  }
  const one = file === undefined ? 'the kubeconfig' : `kubeconfig ${file}`;
  const where = loaded > 1 ? 'KUBECONFIG' : one;
  const fault = isMadeUp(config) ? NOTHING_CONFIGURED : faultIn(config, context, where);
  if (fault !== undefined) throw new CodedError('NO_CLUSTER', fault);
  if (context !== undefined) config.setCurrentContext(context);
  return new KubeClient(new Transport(config, userAgent, clock, { refusedMs }));
}

const NOTHING_CONFIGURED =
  'no Kubernetes cluster is configured: set KUBECONFIG, give a kubeconfig, or run in a pod';
/** Our choice: a message is no list. */
const NAMES_MAX = 10;

/** What client-node goes by where there is no kubeconfig, and no pod. */
const isMadeUp = ({ clusters }: KubeConfig): boolean =>
  clusters.length === 1 &&
  clusters[0]?.name === 'cluster' &&
  clusters[0].server === 'http://localhost:8080';

/** Why it leads to no cluster. */
function faultIn(
  config: KubeConfig,
  wanted: string | undefined,
  where: string,
): string | undefined {
  const name = wanted ?? config.getCurrentContext();
  const { contexts, clusters } = config;
  if (clusters.length === 0) return `${where} names no cluster: it may be another file`;
  const names = contexts.map((context) => context.name);
  const more = names.length > NAMES_MAX ? `, and ${names.length - NAMES_MAX} more` : '';
  const has = names.length === 0 ? 'none' : `${names.slice(0, NAMES_MAX).join(', ')}${more}`;
  // YAML may have anything there.
  if (typeof name !== 'string' || name === '') {
    return `${where} has no current context; name one of these: ${has}`;
  }
  const found = contexts.find((context) => context.name === name);
  if (!found) return `${where} has no context "${name}"; it has ${has}`;
  if (clusters.some((cluster) => cluster.name === found.cluster)) return undefined;
  return `context "${name}" of ${where} names the cluster "${found.cluster}", which is not in it`;
}
