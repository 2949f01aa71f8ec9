import type { BackupVolumeInfo, NativeSnapshot } from '../archive/index.ts';
import type { PersistentVolume } from '../kube/index.ts';

/** Facts about a PersistentVolume of a backup. */
export interface VolumeFacts {
  /** The volume info in the backup; undefined for backups of old servers. */
  readonly info: BackupVolumeInfo | undefined;
  /** The native snapshot of the provider. */
  readonly native: NativeSnapshot | undefined;
  /**
   * These three matter only without `info`: a backup of the files of a pod's volume, a
   * VolumeSnapshot, the result of a DataUpload.
   */
  readonly hasFileBackup: boolean;
  readonly hasCsiSnapshot: boolean;
  readonly hasUploadResult: boolean;
  /** `spec.restorePVs`; only `false` counts. */
  readonly restorePVs: boolean | null | undefined;
}

/** How to restore a PersistentVolume. */
export type VolumePlan =
  /** Create the PersistentVolume with a new volume, which the provider makes from the snapshot. */
  | { readonly kind: 'snapshot'; readonly native: NativeSnapshot; readonly why: string }
  /** Skip it: an operation fills the claim's new volume. `warning`: there is no data. */
  | { readonly kind: 'provision'; readonly why: string; readonly warning?: string }
  /** Restore it unchanged: it refers to the same storage. */
  | { readonly kind: 'asIs'; readonly why: string; readonly warning?: string }
  /** Like `asIs`, but like `provision` if the volume in the original namespace still exists. */
  | { readonly kind: 'withoutSnapshot'; readonly why: string; readonly warning?: string };

/**
 * Velero: pkg/restore/restore.go, restoreItem (v1.18.3). The volume info decides; without it, the
 * files of the backup do. If Velero restores an empty volume, or keeps the old storage, so does
 * this. A warning tells the user.
 */
export function planVolume(pv: PersistentVolume, facts: VolumeFacts): VolumePlan {
  const { info, native } = facts;
  switch (info ? methodOf(info) : unnotedMethod(facts)) {
    case 'NativeSnapshot':
      return planNative(native, facts.restorePVs);
    case 'PodVolumeBackup':
      return {
        kind: 'provision',
        why: 'it has a pod volume backup to be restored',
        ...(info?.result === 'failed' && {
          warning: `the backup of its files failed${messageOf(info)}: its claim gets an empty volume`,
        }),
      };
    case 'CSISnapshot':
      return {
        kind: 'provision',
        why: 'it has a CSI VolumeSnapshot or a related snapshot DataUpload',
        ...(info?.result === 'failed' && {
          warning: `its snapshot failed${messageOf(info)}: its claim may get an empty volume`,
        }),
      };
    default:
      return planWithoutData(pv, info);
  }
}

const methodOf = ({ backupMethod }: BackupVolumeInfo): string => backupMethod ?? '';

function unnotedMethod(facts: VolumeFacts): string {
  if (facts.native) return 'NativeSnapshot';
  if (facts.hasFileBackup) return 'PodVolumeBackup';
  return facts.hasCsiSnapshot || facts.hasUploadResult ? 'CSISnapshot' : '';
}

function planNative(
  native: NativeSnapshot | undefined,
  restorePVs: boolean | null | undefined,
): VolumePlan {
  if (restorePVs === false) {
    return { kind: 'withoutSnapshot', why: 'the restore does not restore volumes' };
  }
  if (native) return { kind: 'snapshot', native, why: 'it has a snapshot of its provider' };
  return {
    kind: 'withoutSnapshot',
    why: 'no snapshot of it was found',
    warning:
      'the backup names a snapshot of its provider and has none: it stands for the storage that it stood for, with what is in there now',
  };
}

function planWithoutData(pv: PersistentVolume, info: BackupVolumeInfo | undefined): VolumePlan {
  const isNamed = info?.skipped === true && (info.skippedReason ?? '') !== '';
  const reason = isNamed ? ` (${info.skippedReason ?? ''})` : '';
  if (pv.spec.persistentVolumeReclaimPolicy === 'Delete') {
    return {
      kind: 'provision',
      why: "it doesn't have a snapshot and its reclaim policy is Delete",
      warning: `the backup has none of its data${reason}, and its reclaim policy is Delete: its claim gets an empty volume`,
    };
  }
  return { kind: 'asIs', why: "it doesn't have a snapshot and its reclaim policy is not Delete" };
}

const messageOf = ({ pvbInfo, csiSnapshotInfo }: BackupVolumeInfo): string => {
  const what = pvbInfo?.podName ?? csiSnapshotInfo?.vscName ?? '';
  return what === '' ? '' : ` (${what})`;
};
