import type { Pod } from '../../kube/index.ts';

/** Fields for a pod's identity and deletion. Agents keep thousands of large pods. */
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
