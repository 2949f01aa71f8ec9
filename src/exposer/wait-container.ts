import type { ContainerStatus, Pod } from '../kube/index.ts';

/** Init container that waits until the volumes have their marks (Velero: pkg/restorehelper). */
export const WAIT_CONTAINER = 'restore-wait';

export const waitStatusOf = ({ status }: Pod): ContainerStatus | undefined =>
  status?.initContainerStatuses?.find(({ name }) => name === WAIT_CONTAINER);

/** The container succeeds only if all volumes have marks. Then the pod's containers may run. */
export const isWaitOver = (pod: Pod): boolean =>
  waitStatusOf(pod)?.state?.terminated?.exitCode === 0;
