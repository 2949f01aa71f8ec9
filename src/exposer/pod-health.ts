import { isPodOver, type Node, type Pod } from '../kube/index.ts';

const IMAGE_REASONS = ['ImagePullBackOff', 'ErrImageNeverPull', 'InvalidImageName'];

/**
 * Why a hosting pod will never run its data mover; undefined if it still may. Unschedulable pods
 * may still find a node (Velero: pkg/util/kube/pod.go, IsPodUnrecoverable).
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
 * Reasons of a container that ended by itself. Other reasons, such as `ContainerStatusUnknown` and
 * `StartError`, come from outside.
 */
const OWN_REASONS = ['', 'Completed', 'Error'];

/** The mover's own termination message, not a kubelet's about a lost container. */
export function terminationOf(pod: Pod): string | undefined {
  for (const { state } of pod.status?.containerStatuses ?? []) {
    const { message, reason = '' } = state?.terminated ?? {};
    if (message && OWN_REASONS.includes(reason)) return message;
  }
  return undefined;
}

/** How the container ended if the mover reported nothing: out of memory, evicted, killed. */
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

/** The kubelet's refusals. `OutOf`: pods, cpu, memory or ephemeral-storage. */
const NO_ROOM = /^(OutOf[a-z]|Evicted$|UnexpectedAdmissionError$|NodeShutdown$|Terminated$)/;

/** Why the kubelet refused the pod. No container has run; another pod may find room later. */
export function refusalOf({ status }: Pod): string | undefined {
  const { phase, reason = '', message = '', containerStatuses = [] } = status ?? {};
  if (phase !== 'Failed' || !NO_ROOM.test(reason)) return undefined;
  if (containerStatuses.some(({ state }) => state?.running ?? state?.terminated)) return undefined;
  return [reason, message].filter((text) => text !== '').join(': ');
}

/** Whether all processes of the pod have ended, according to its node. */
export function hasEnded({ status }: Pod): boolean {
  const containers = status?.containerStatuses ?? [];
  // Before Kubernetes 1.27, kubelets report an evicted pod as failed while its process still runs.
  if (containers.some(({ state }) => state?.running !== undefined)) return false;
  if (isPodOver(status?.phase)) return true;
  return containers.length > 0 && containers.every(({ state }) => state?.terminated !== undefined);
}

/** An administrator confirmed by the taint that nothing runs on the node. */
export const isOutOfService = ({ spec }: Node): boolean =>
  spec?.taints?.some(({ key }) => key === 'node.kubernetes.io/out-of-service') === true;
