import type { BackupVolumeInfo, NativeSnapshot } from '../archive/index.ts';
import type { PersistentVolume } from '../kube/index.ts';

/** What is known of a PersistentVolume of a backup when its restore comes to it. */
export interface VolumeFacts {
  /**
   * What the backup noted of it; undefined for backups of old servers, and for what nobody noted.
   */
  readonly info: BackupVolumeInfo | undefined;
  /** The snapshot by its provider. */
  readonly native: NativeSnapshot | undefined;
  /**
   * These three only matter where there is no note: a backup of the files of a pod's volume, a
   * VolumeSnapshot, the result of a DataUpload.
   */
  readonly hasFileBackup: boolean;
  readonly hasCsiSnapshot: boolean;
  readonly hasUploadResult: boolean;
  /** `spec.restorePVs`; only `false` counts. */
  readonly restorePVs: boolean | null | undefined;
}

/** What a restore does about a PersistentVolume. */
export type VolumePlan =
  /** It is made anew, with a volume that its provider makes out of the snapshot. */
  | { readonly kind: 'snapshot'; readonly native: NativeSnapshot; readonly why: string }
  /** It is left out: its claim gets a new volume, which is filled by whoever has the data. `warning`: nobody has them. */
  | { readonly kind: 'provision'; readonly why: string; readonly warning?: string }
  /** It is restored as it was, and stands for the storage that it stood for. */
  | { readonly kind: 'asIs'; readonly why: string; readonly warning?: string }
  /** As it was, in the way of one with a snapshot: renamed where its name is taken by the namespace that it comes from. */
  | { readonly kind: 'withoutSnapshot'; readonly why: string; readonly warning?: string };

/**
 * Velero: pkg/restore/restore.go, restoreItem (v1.18.3). The note of the backup decides; without
 * one the files of the backup do. Whatever Velero restores with nothing in it, or with the old
 * storage behind it, is done as there, with a warning that says so.
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
