import type { DownloadTargetKind } from '../../kube/index.ts';

interface Target {
  /** Whose file it is. */
  readonly of: 'Backup' | 'Restore';
  /** Below the location's own prefix; without a slash in front. */
  readonly keyOf: (name: string) => string;
}

const ofBackup = (file: (name: string) => string): Target => ({
  of: 'Backup',
  keyOf: (name) => `backups/${name}/${file(name)}`,
});
const ofRestore = (file: (name: string) => string): Target => ({
  of: 'Restore',
  keyOf: (name) => `restores/${name}/${file(name)}`,
});

/** Which file each kind of a DownloadRequest is (Velero: pkg/persistence/object_store_layout.go; one of them has another prefix). */
export const DOWNLOAD_TARGETS: Readonly<Record<DownloadTargetKind, Target>> = {
  BackupLog: ofBackup((name) => `${name}-logs.gz`),
  BackupContents: ofBackup((name) => `${name}.tar.gz`),
  BackupVolumeSnapshots: ofBackup((name) => `${name}-volumesnapshots.json.gz`),
  BackupItemOperations: ofBackup((name) => `${name}-itemoperations.json.gz`),
  BackupResourceList: ofBackup((name) => `${name}-resource-list.json.gz`),
  BackupResults: ofBackup((name) => `${name}-results.gz`),
  BackupVolumeInfos: ofBackup((name) => `${name}-volumeinfo.json.gz`),
  CSIBackupVolumeSnapshots: ofBackup((name) => `${name}-csi-volumesnapshots.json.gz`),
  CSIBackupVolumeSnapshotContents: ofBackup((name) => `${name}-csi-volumesnapshotcontents.json.gz`),
  RestoreLog: ofRestore((name) => `restore-${name}-logs.gz`),
  RestoreResults: ofRestore((name) => `restore-${name}-results.gz`),
  RestoreResourceList: ofRestore((name) => `restore-${name}-resource-list.json.gz`),
  RestoreItemOperations: ofRestore((name) => `restore-${name}-itemoperations.json.gz`),
  RestoreVolumeInfo: ofRestore((name) => `${name}-volumeinfo.json.gz`),
};
