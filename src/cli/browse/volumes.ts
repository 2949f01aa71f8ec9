import { lookup } from '../../base/index.ts';
import type { BackupVolumeInfo } from '../../archive/index.ts';

/** A volume of a backup, with the name that `browse` uses. */
export interface BrowsableVolume {
  /** `NAMESPACE/PVC`, or `NAMESPACE/POD:VOLUME` for a volume of a pod without a PVC. */
  readonly name: string;
  readonly how: string;
  readonly bytes: number | undefined;
  /** The place of its files, or why they cannot be browsed. */
  readonly files:
    | {
        readonly snapshotId: string;
        readonly volumeNamespace: string;
        /** Empty for a volume of a pod. */
        readonly dataMover: string;
      }
    | { readonly why: string };
}

const METHODS: Readonly<Record<string, string>> = {
  PodVolumeBackup: 'file system backup',
  CSISnapshot: 'CSI snapshot',
  NativeSnapshot: 'native snapshot',
};

/** The volumes in volume infos, by name. A volume shared by several pods is listed once. */
export function volumesIn(infos: readonly BackupVolumeInfo[]): BrowsableVolume[] {
  const byName = new Map<string, BrowsableVolume>();
  for (const info of infos) {
    const volume = volumeOf(info);
    const before = byName.get(volume.name);
    // Prefers an entry that can be browsed.
    if (!before || 'why' in before.files) byName.set(volume.name, volume);
  }
  return [...byName.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

function volumeOf(info: BackupVolumeInfo): BrowsableVolume {
  const { pvcNamespace = '', pvcName = '', pvbInfo, snapshotDataMovementInfo: moved } = info;
  const name =
    pvcName === '' && pvbInfo
      ? `${pvbInfo.podNamespace ?? ''}/${pvbInfo.podName ?? ''}:${pvbInfo.volumeName ?? ''}`
      : `${pvcNamespace}/${pvcName || (info.pvName ?? '')}`;
  const method = lookup(METHODS, info.backupMethod ?? '') ?? 'not backed up';
  const how = info.snapshotDataMoved === true ? 'data movement' : method;
  const of = (
    files: BrowsableVolume['files'],
    size: number | bigint | undefined,
  ): BrowsableVolume => ({
    name,
    how,
    files,
    bytes: size === undefined ? undefined : Number(size),
  });
  if (info.skipped === true) {
    return of({ why: `it was skipped: ${info.skippedReason ?? 'no reason is noted'}` }, undefined);
  }
  const stored = info.snapshotDataMoved === true ? moved : pvbInfo;
  if (!stored) {
    const why = 'its snapshot stays in the storage: restore it to see its files';
    return of({ why }, info.csiSnapshotInfo?.size);
  }
  const { snapshotHandle: snapshotId = '', uploaderType = '', size } = stored;
  if (snapshotId === '') {
    const phase = stored.Phase || 'unfinished';
    return of({ why: `nothing is stored of it: its upload is ${phase}` }, size);
  }
  // An empty type means Kopia: old versions of Velero did not set it.
  if (!['', 'kopia', 'longshore'].includes(uploaderType)) {
    return of({ why: `it is in a repository of ${uploaderType}, which is not read here` }, size);
  }
  const volumeNamespace =
    info.snapshotDataMoved === true ? pvcNamespace : (pvbInfo?.podNamespace ?? pvcNamespace);
  const dataMover = (info.snapshotDataMoved === true && moved?.dataMover) || '';
  return of({ snapshotId, volumeNamespace, dataMover }, size);
}
