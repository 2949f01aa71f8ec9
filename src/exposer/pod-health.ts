import { isPodOver, type Node, type Pod } from '../kube/index.ts';

const IMAGE_REASONS = ['ImagePullBackOff', 'ErrImageNeverPull', 'InvalidImageName'];

/**
 * Why a hosting pod that has not run its data mover never will; undefined while there is hope.
 * Unschedulable pods may still find a node (Velero: pkg/util/kube/pod.go, IsPodUnrecoverable).
 */
export function unrecoverable(pod: Pod): string | undefined {
  const { phase, message, reason } = pod.status ?? {};
  if (phase === 'Failed' || phase === 'Unknown') {
    const texts = [reason, message, terminationOf(pod)].filter((text) => text);
    return `Pod is in abnormal state [${phase}], message [${texts.join('/')}]`;
  }
  for (const { name, state } of pod.status?.containerStatuses ?? []) {
    const waiting = state?.waiting?.reason ?? '';
    if (!IMAGE_REASONS.includes(waiting)) continue;
    const { namespace = '', name: podName } = pod.metadata;
    return `Container ${name} in Pod ${namespace}/${podName} is in pull image failed with reason ${waiting}: ${state?.waiting?.message ?? ''}`;
  }
  return undefined;
}

/**
 * Ends that the container brought about itself; others, such as `ContainerStatusUnknown` and
 * `StartError`, befell it.
 */
const OWN_REASONS = ['', 'Completed', 'Error'];

/**
 * What the mover said when it ended; what the kubelet says of a container that it lost is no word
 * of its own.
 */
export function terminationOf(pod: Pod): string | undefined {
  for (const { state } of pod.status?.containerStatuses ?? []) {
    const { message, reason = '' } = state?.terminated ?? {};
    if (message && OWN_REASONS.includes(reason)) return message;
  }
  return undefined;
}

/**
 * How the container ended, where the mover itself could not say it: out of memory, evicted, killed.
 */
export function deathOf(pod: Pod): string {
  const { reason, message } = pod.status ?? {};
  const terminated = pod.status?.containerStatuses?.[0]?.state?.terminated;
  if (terminated?.reason === 'OOMKilled') return 'its pod ran out of memory (OOMKilled)';
  if (reason !== undefined)
    return `its pod was terminated: ${reason}${message ? `: ${message}` : ''}`;
  if (terminated && !OWN_REASONS.includes(terminated.reason ?? '')) {
    const { message: text } = terminated;
    return `its container was terminated: ${terminated.reason ?? ''}${text ? `: ${text}` : ''}`;
  }
  if (terminated) return `it ended with exit code ${terminated.exitCode} and no message`;
  return 'its pod failed without a reason';
}

/**
 * The kubelet's reasons where a node is short of something: OutOfpods, OutOfcpu, OutOfmemory,
 * OutOfephemeral-storage.
 */
const NO_ROOM = /^(OutOf[a-z]|Evicted$|UnexpectedAdmissionError$|NodeShutdown$|Terminated$)/;

/**
 * Why the kubelet did not let the pod in; undefined where it did. Nothing of it has ever run, and
 * the node may have room for another one later.
 */
export function refusalOf({ status }: Pod): string | undefined {
  const { phase, reason = '', message = '', containerStatuses = [] } = status ?? {};
  if (phase !== 'Failed' || !NO_ROOM.test(reason)) return undefined;
  if (containerStatuses.some(({ state }) => state?.running ?? state?.terminated)) return undefined;
  return [reason, message].filter((text) => text !== '').join(': ');
}

/** Whether no process of the pod runs any more, by its node's own word. */
export function hasEnded({ status }: Pod): boolean {
  const containers = status?.containerStatuses ?? [];
  // Kubelets before Kubernetes 1.27 say that a pod which they evict has failed while its process
  // still runs.
  if (containers.some(({ state }) => state?.running !== undefined)) return false;
  if (isPodOver(status?.phase)) return true;
  return containers.length > 0 && containers.every(({ state }) => state?.terminated !== undefined);
}

/** A node of which somebody has made sure that nothing runs there any more. */
export const isOutOfService = ({ spec }: Node): boolean =>
  spec?.taints?.some(({ key }) => key === 'node.kubernetes.io/out-of-service') === true;
