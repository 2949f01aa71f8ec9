import type { Container, ContainerStatus, Pod } from './core.ts';

/**
 * The containers that run as long as their pod: the regular ones first, then native sidecars. A
 * native sidecar is an init container with `restartPolicy: Always`.
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

/** The states of all containers. Container names are unique in a pod. */
export const containerStatusesOf = ({ status }: Pick<Pod, 'status'>): ContainerStatus[] => [
  ...(status?.containerStatuses ?? []),
  ...(status?.initContainerStatuses ?? []),
];
