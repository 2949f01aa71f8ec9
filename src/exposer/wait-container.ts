import type { ContainerStatus, Pod } from '../kube/index.ts';

/**
 * The init container that delays a restored pod until its volumes have their marks (Velero:
 * pkg/restorehelper).
 */
export const WAIT_CONTAINER = 'restore-wait';

export const waitStatusOf = ({ status }: Pod): ContainerStatus | undefined =>
  status?.initContainerStatuses?.find(({ name }) => name === WAIT_CONTAINER);

/**
 * The container succeeds only after all volumes have their marks. Then the pod's own containers may
 * run.
 */
export const isWaitOver = (pod: Pod): boolean =>
  waitStatusOf(pod)?.state?.terminated?.exitCode === 0;
