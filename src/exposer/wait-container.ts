import type { ContainerStatus, Pod } from '../kube/index.ts';

/**
 * The init container that holds a restored pod back until its volumes have their marks (Velero:
 * pkg/restorehelper).
 */
export const WAIT_CONTAINER = 'restore-wait';

export const waitStatusOf = ({ status }: Pod): ContainerStatus | undefined =>
  status?.initContainerStatuses?.find(({ name }) => name === WAIT_CONTAINER);

/**
 * It ends well for no other reason than that all volumes have had their marks: the pod's own
 * containers may run.
 */
export const isWaitOver = (pod: Pod): boolean =>
  waitStatusOf(pod)?.state?.terminated?.exitCode === 0;
