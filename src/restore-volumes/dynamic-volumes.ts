import type { BackupVolumeInfo } from '../archive/index.ts';
import type { PersistentVolume, PersistentVolumeClaim, StorageClass } from '../kube/index.ts';

/** The current state of a restored claim. */
export interface DynamicVolume {
  readonly claim: PersistentVolumeClaim | undefined;
  /** The volume that the claim names. */
  readonly pv: PersistentVolume | undefined;
  /** The claim's StorageClass; undefined if there is none, or if it was deleted. */
  readonly storageClass: StorageClass | undefined;
  /** Phase of the operation that fills the claim; undefined without an operation. */
  readonly operationPhase: string | undefined;
}

/** The next step for a dynamically provisioned volume. */
export type DynamicVolumePlan =
  | { readonly kind: 'wait' | 'skip' | 'fail'; readonly why: string }
  | { readonly kind: 'nothing' }
  /** A merge patch of the PersistentVolume, which fails if the volume has changed since. */
  | { readonly kind: 'patch'; readonly patch: object };

/**
 * A new volume gets the reclaim policy of the old one, and the old labels that it lacks. Velero
 * replaces all labels, and so loses those of the provisioner, such as the zone. Velero:
 * pkg/controller/restore_finalizer_controller.go, patchDynamicPVWithVolumeInfo.
 */
export function planDynamicVolume(
  info: BackupVolumeInfo,
  { claim, pv, storageClass, operationPhase }: DynamicVolume,
): DynamicVolumePlan {
  const isDynamic = ['PodVolumeBackup', 'CSISnapshot'].includes(info.backupMethod ?? '');
  if (!isDynamic || !info.pvInfo) return { kind: 'nothing' };
  if (!claim) return { kind: 'wait', why: 'the claim is not there' };
  if (operationPhase !== undefined && operationPhase !== 'Completed') {
    return { kind: 'skip', why: `the operation that fills the claim is ${operationPhase}` };
  }
  const { volumeName = '' } = claim.spec;
  const phase = claim.status?.phase ?? '';
  if (phase === 'Pending' && storageClass?.volumeBindingMode === 'WaitForFirstConsumer') {
    return { kind: 'skip', why: 'the claim is bound only when a pod uses it' };
  }
  if (phase !== 'Bound' || volumeName === '') {
    return { kind: 'wait', why: `the claim is not bound (${phase === '' ? 'no phase' : phase})` };
  }
  if (!pv) return { kind: 'wait', why: `PersistentVolume ${volumeName} is not there` };
  const { claimRef } = pv.spec;
  if (!claimRef || pv.status?.phase !== 'Bound') {
    return { kind: 'wait', why: `PersistentVolume ${volumeName} is not bound` };
  }
  const [namespace = '', name] = [claim.metadata.namespace, claim.metadata.name];
  if (claimRef.name !== name || claimRef.namespace !== namespace) {
    const other = `${claimRef.namespace ?? ''}/${claimRef.name ?? ''}`;
    return {
      kind: 'fail',
      why: `PV was bound by unexpected PVC, unexpected PVC: ${other}, expected PVC: ${namespace}/${name}`,
    };
  }
  return patchOf(pv, info.pvInfo);
}

function patchOf(
  { metadata, spec }: PersistentVolume,
  { reclaimPolicy = '', labels }: NonNullable<BackupVolumeInfo['pvInfo']>,
): DynamicVolumePlan {
  const present = metadata.labels ?? {};
  const missing = Object.entries(labels ?? {}).filter(([key]) => !Object.hasOwn(present, key));
  const isOther = reclaimPolicy !== '' && reclaimPolicy !== spec.persistentVolumeReclaimPolicy;
  if (missing.length === 0 && !isOther) return { kind: 'nothing' };
  return {
    kind: 'patch',
    patch: {
      metadata: {
        resourceVersion: metadata.resourceVersion,
        ...(missing.length > 0 && { labels: Object.fromEntries(missing) }),
      },
      ...(isOther && { spec: { persistentVolumeReclaimPolicy: reclaimPolicy } }),
    },
  };
}
