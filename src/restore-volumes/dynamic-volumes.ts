import type { BackupVolumeInfo } from '../archive/index.ts';
import type { PersistentVolume, PersistentVolumeClaim, StorageClass } from '../kube/index.ts';

/** What the cluster has of a restored claim at present. */
export interface DynamicVolume {
  readonly claim: PersistentVolumeClaim | undefined;
  /** The one that the claim names. */
  readonly pv: PersistentVolume | undefined;
  /** Of the claim; undefined where it has none, or it is gone. */
  readonly storageClass: StorageClass | undefined;
  /** Phase of the operation that fills the claim; undefined where there is none. */
  readonly operationPhase: string | undefined;
}

/** What is done about the volume of a claim that was provisioned anew. */
export type DynamicVolumePlan =
  | { readonly kind: 'wait' | 'skip' | 'fail'; readonly why: string }
  | { readonly kind: 'nothing' }
  /** A merge patch of the PersistentVolume, which fails where somebody has changed it since. */
  | { readonly kind: 'patch'; readonly patch: object };

/**
 * A new volume gets the reclaim policy of the old one, and those of its labels that it lacks:
 * Velero replaces all labels, so that those of the provisioner, such as the zone, are lost. Velero:
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
