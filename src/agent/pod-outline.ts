import type { Pod } from '../kube/index.ts';

/**
 * Of a pod, what names it and says whether it is going: agents keep thousands, each of which has
 * its whole manifest.
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
