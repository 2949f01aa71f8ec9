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

/** The pods of one restore in the cluster. */
export interface PodWatch {
  /** Calls the listener for each existing pod, and for each change and deletion. */
  onChange(listener: (after: Pod | undefined, before: Pod | undefined) => void): void;
  /** Reads the watch's cache. */
  get(ref: { namespace: string; name: string }): Pod | undefined;
  /** Reads from the API server. */
  look(ref: { namespace: string; name: string }, signal: AbortSignal): Promise<Pod | undefined>;
}

/** Watches a restore's pods by its label. Keeps fields for hooks only. `run` returns on abort. */
export function watchRestoredPods({
  client,
  restore,
  logger,
}: {
  readonly client: KubeClient;
  /** The name of the Restore. */
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

/** The fields of a pod that hooks need. */
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
