import type { Container, ContainerStatus, Pod } from './core.ts';

/**
 * The containers that run as long as their pod: the regular ones first, then native sidecars.
 * Kubernetes starts a sidecar among the init containers and lets it run (`restartPolicy: Always`).
 */
export const lastingContainers = <C extends Pick<Container, 'restartPolicy'>>({
  containers,
  initContainers,
}: {
  readonly containers?: readonly C[] | null | undefined;
  readonly initContainers?: readonly C[] | null | undefined;
}): C[] => [
  ...(containers ?? []),
  ...(initContainers ?? []).filter(({ restartPolicy }) => restartPolicy === 'Always'),
];

/** The states of all containers. No two of a pod have one name. */
export const containerStatusesOf = ({ status }: Pick<Pod, 'status'>): ContainerStatus[] => [
  ...(status?.containerStatuses ?? []),
  ...(status?.initContainerStatuses ?? []),
];
