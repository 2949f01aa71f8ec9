import {
  type KubeObject,
  type NewObject,
  type ObjectRef,
  type PersistentVolumeClaim,
  PVCS,
  type Resource,
} from '../kube/index.ts';
import { ownerReference } from './hosting-pod.ts';
import { makeFor } from './ownership.ts';
import type { ExposerOptions } from './settings.ts';

const GIB = 1n << 30n;
export const SELECTED_NODE = 'volume.kubernetes.io/selected-node';

/** A CR that restores a snapshot. The size is in bytes, if known. */
type Restore = KubeObject & { readonly spec: { readonly snapshotSize?: number | undefined } };

export const cacheClaimRef = (
  namespace: string,
  { metadata }: KubeObject,
): Required<ObjectRef> => ({
  namespace,
  name: `${metadata.name}-cache`,
});

/**
 * Creates a claim for the mover's cache, if the settings want it and the restore is large enough.
 * Returns its name. `node`: where the claim will be used, if known.
 */
export async function createCacheClaim<T extends Restore>(
  { client, namespace, config: { cacheVolume } }: ExposerOptions,
  resource: Resource<T>,
  restore: T,
  node: string | undefined,
): Promise<string | undefined> {
  const size = restore.spec.snapshotSize ?? 0;
  if (!cacheVolume || (size !== 0 && size < cacheVolume.residentThresholdBytes)) return undefined;
  const { name } = cacheClaimRef(namespace, restore);
  const needed = (BigInt(cacheVolume.limitBytes) * 12n) / 10n;
  const gib = (needed + GIB - 1n) / GIB;
  const cache: NewObject<PersistentVolumeClaim> = {
    metadata: {
      name,
      namespace,
      ownerReferences: [ownerReference(resource, restore)],
      ...(node !== undefined && { annotations: { [SELECTED_NODE]: node } }),
    },
    spec: {
      accessModes: ['ReadWriteOnce'],
      storageClassName: cacheVolume.storageClass,
      volumeMode: 'Filesystem',
      resources: { requests: { storage: `${gib}Gi` } },
    },
  };
  await makeFor(client, PVCS, cache, restore);
  return name;
}
