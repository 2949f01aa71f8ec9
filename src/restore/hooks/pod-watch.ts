import type { Logger } from '../../base/index.ts';
import {
  Cache,
  type Container,
  type KubeClient,
  type Pod,
  PODS,
  RESTORE_NAME,
  validLabel,
} from '../../kube/index.ts';

/** Pods of one restore, as the cluster has them. */
export interface PodWatch {
  /** Told of every pod that is there, and of each that changes or goes. */
  onChange(listener: (after: Pod | undefined, before: Pod | undefined) => void): void;
  /** As the watch has it. */
  get(ref: { namespace: string; name: string }): Pod | undefined;
  /** Asks the server. */
  look(ref: { namespace: string; name: string }, signal: AbortSignal): Promise<Pod | undefined>;
}

/**
 * One watch for all pods that a restore has created, by the label that it has put on them. Only
 * what hooks ask about is kept of each. `run` goes on until it is aborted.
 */
export function watchRestoredPods({
  client,
  restore,
  logger,
}: {
  readonly client: KubeClient;
  /** Its name. */
  readonly restore: string;
  readonly logger: Logger;
}): PodWatch & { run(signal: AbortSignal): Promise<void> } {
  const labelSelector = `${RESTORE_NAME}=${validLabel(restore)}`;
  const cache = new Cache({
    client,
    resource: PODS,
    scope: { labelSelector },
    logger,
    trim: trimmedPod,
  });
  return {
    onChange: (listener) => {
      cache.onChange(listener);
    },
    get: (ref) => cache.get(ref),
    look: (ref, signal) => client.find(PODS, ref, { signal }),
    run: (signal) => cache.run(signal),
  };
}

/** As much of a pod as hooks ask about. */
export function trimmedPod({ metadata, spec, status }: Pod): Pod {
  const { name, namespace, uid, resourceVersion, creationTimestamp, deletionTimestamp } = metadata;
  return {
    metadata: {
      name,
      uid,
      resourceVersion,
      creationTimestamp,
      ...(namespace !== undefined && { namespace }),
      ...(deletionTimestamp !== undefined && { deletionTimestamp }),
    },
    spec: {
      containers: spec.containers.map(outlined),
      ...(spec.initContainers && { initContainers: spec.initContainers.map(outlined) }),
      ...(spec.nodeName !== undefined && { nodeName: spec.nodeName }),
    },
    ...(status && {
      status: {
        ...(status.phase && { phase: status.phase }),
        ...(status.containerStatuses && { containerStatuses: status.containerStatuses }),
        ...(status.initContainerStatuses && {
          initContainerStatuses: status.initContainerStatuses,
        }),
      },
    }),
  };
}

const outlined = ({ name, restartPolicy }: Container): Container => ({
  name,
  ...(restartPolicy !== undefined && { restartPolicy }),
});
