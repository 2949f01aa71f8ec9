import type { Pod } from '../kube/index.ts';

/**
 * The fields that identify a pod and show its deletion. Agents keep thousands of pods with large
 * manifests.
 */
export function outlineOf({
  apiVersion,
  kind,
  metadata,
}: Pod): Pick<Pod, 'apiVersion' | 'kind' | 'metadata'> {
  const { name, namespace, uid, resourceVersion, creationTimestamp, deletionTimestamp } = metadata;
  return {
    ...(apiVersion !== undefined && { apiVersion }),
    ...(kind !== undefined && { kind }),
    metadata: {
      name,
      uid,
      resourceVersion,
      creationTimestamp,
      ...(namespace !== undefined && { namespace }),
      ...(deletionTimestamp !== undefined && { deletionTimestamp }),
    },
  };
}
