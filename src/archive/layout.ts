import { CodedError } from '../base/index.ts';

/** Velero: pkg/persistence/object_store_layout.go (v1.18.3). Keys exclude the location's prefix. */
export const BACKUPS_FOLDER = 'backups/';
export const RESTORES_FOLDER = 'restores/';
/** Top folders that Velero allows. With any other folder Velero calls the location unavailable. */
const TOP_FOLDERS = ['backups', 'restores', 'restic', 'metadata', 'plugins', 'kopia'];
/** Velero: object_store.go, IsValid. */
const NAMED_FOLDERS_MAX = 3;

/** Signed notes of deleted backups. Velero allows the folder `metadata` and reads nothing in it. */
export const DELETION_NOTES_FOLDER = 'metadata/longshore-deleted/';
/** Throws `BAD_ARCHIVE_NAME`. */
export const deletionNoteKey = (backup: string, uid: string): string =>
  `${DELETION_NOTES_FOLDER}${assertName(backup)}/${assertName(uid)}.json`;

/** Suffixes of a backup's files. Only older versions wrote the CSI files, which are still read. */
const BACKUP_SUFFIXES = {
  contents: '.tar.gz',
  log: '-logs.gz',
  results: '-results.gz',
  podVolumeBackups: '-podvolumebackups.json.gz',
  volumeSnapshots: '-volumesnapshots.json.gz',
  itemOperations: '-itemoperations.json.gz',
  resourceList: '-resource-list.json.gz',
  volumeInfos: '-volumeinfo.json.gz',
  csiVolumeSnapshots: '-csi-volumesnapshots.json.gz',
  csiVolumeSnapshotContents: '-csi-volumesnapshotcontents.json.gz',
  csiVolumeSnapshotClasses: '-csi-volumesnapshotclasses.json.gz',
} as const;

export type BackupFile = keyof typeof BACKUP_SUFFIXES | 'metadata' | 'checksums';

export const backupFolder = (backup: string): string => `${BACKUPS_FOLDER}${assertName(backup)}/`;
export const restoreFolder = (restore: string): string =>
  `${RESTORES_FOLDER}${assertName(restore)}/`;

/** The key of a file of a backup. Throws `BAD_ARCHIVE_NAME`. */
export function backupKey(backup: string, file: BackupFile): string {
  const folder = backupFolder(backup);
  if (file === 'metadata') return `${folder}velero-backup.json`;
  // Velero reads its own names only, and deletes everything in the folder.
  if (file === 'checksums') return `${folder}longshore-checksums.json`;
  return `${folder}${backup}${BACKUP_SUFFIXES[file]}`;
}

/** The file of a backup that has this key, or undefined. Throws `BAD_ARCHIVE_NAME`. */
export function backupFileOf(backup: string, key: string): BackupFile | undefined {
  const files = [...(Object.keys(BACKUP_SUFFIXES) as (keyof typeof BACKUP_SUFFIXES)[]), 'metadata'];
  return (files as BackupFile[]).find((file) => backupKey(backup, file) === key);
}

/**
 * Journals of running backups of this name. Velero reads only its own names, lists only the top of
 * the folder, and deletes everything below it with the backup.
 */
export const journalsFolder = (backup: string): string =>
  `${backupFolder(backup)}longshore-journal/`;
/** The journal of one Backup object. Other objects of its name have their own. */
export const journalFolder = (backup: string, uid: string): string =>
  `${journalsFolder(backup)}${assertName(uid)}/`;
/** The journal of a Restore, in the folder of its files, so that both are deleted together. */
export const restoreJournalFolder = (restore: string, uid: string): string =>
  `${restoreFolder(restore)}longshore-journal/${assertName(uid)}/`;

/** The owner of the moved volumes. */
export interface MoverLogOwner {
  readonly kind: 'Backup' | 'Restore';
  readonly name: string;
}

/**
 * The logs of data movers, one object for each volume. Velero reads only its own names, and deletes
 * everything in the folder of a backup or a restore.
 */
export const moverLogsFolder = ({ kind, name }: MoverLogOwner): string =>
  `${kind === 'Backup' ? backupFolder(name) : restoreFolder(name)}longshore-logs/`;

const MOVER_LOG_SUFFIX = '.gz';

/** `volume`: `NAMESPACE.PVC`, or `NAMESPACE.POD_VOLUME` of a pod. Throws `BAD_ARCHIVE_NAME`. */
export function moverLogKey(owner: MoverLogOwner, volume: string): string {
  // No Kubernetes name has an underscore, so the two forms cannot collide.
  const names = volume.split('_');
  if (names.length > 2 || !names.every(isName)) {
    const shown = JSON.stringify(volume.slice(0, 100));
    throw new CodedError('BAD_ARCHIVE_NAME', `${shown} cannot be the name of a volume`);
  }
  return `${moverLogsFolder(owner)}${volume}${MOVER_LOG_SUFFIX}`;
}

/** The volume of a key below {@link moverLogsFolder}; undefined for foreign objects. */
export function moverLogVolume(owner: MoverLogOwner, key: string): string | undefined {
  const folder = moverLogsFolder(owner);
  if (!key.startsWith(folder) || !key.endsWith(MOVER_LOG_SUFFIX)) return undefined;
  const volume = key.slice(folder.length, -MOVER_LOG_SUFFIX.length);
  const names = volume.split('_');
  return names.length <= 2 && names.every(isName) ? volume : undefined;
}

export type RestoreFile =
  | 'log'
  | 'results'
  | 'resourceList'
  | 'itemOperations'
  | 'volumeInfos'
  /** Ours: notes of a run for the finalizer. Velero ignores other names, and deletes all. */
  | 'afterRun'
  /** Ours: the owner of the files. */
  | 'owner';

/** The key of a file of a restore. In Velero, volume infos lack the prefix `restore-`. */
export function restoreKey(restore: string, file: RestoreFile): string {
  const folder = restoreFolder(restore);
  switch (file) {
    case 'log':
      return `${folder}restore-${restore}-logs.gz`;
    case 'results':
      return `${folder}restore-${restore}-results.gz`;
    case 'resourceList':
      return `${folder}restore-${restore}-resource-list.json.gz`;
    case 'itemOperations':
      return `${folder}restore-${restore}-itemoperations.json.gz`;
    case 'volumeInfos':
      return `${folder}${restore}-volumeinfo.json.gz`;
    case 'afterRun':
      return `${folder}longshore-after-run.json.gz`;
    case 'owner':
      return `${folder}longshore-owner.json`;
  }
}

/** Keys for kinds of DownloadRequests (pkg/apis/velero/v1/download_request_types.go). */
const DOWNLOADS = {
  BackupLog: (name: string) => backupKey(name, 'log'),
  BackupContents: (name: string) => backupKey(name, 'contents'),
  BackupVolumeSnapshots: (name: string) => backupKey(name, 'volumeSnapshots'),
  BackupItemOperations: (name: string) => backupKey(name, 'itemOperations'),
  BackupResourceList: (name: string) => backupKey(name, 'resourceList'),
  BackupResults: (name: string) => backupKey(name, 'results'),
  BackupVolumeInfos: (name: string) => backupKey(name, 'volumeInfos'),
  CSIBackupVolumeSnapshots: (name: string) => backupKey(name, 'csiVolumeSnapshots'),
  CSIBackupVolumeSnapshotContents: (name: string) => backupKey(name, 'csiVolumeSnapshotContents'),
  RestoreLog: (name: string) => restoreKey(name, 'log'),
  RestoreResults: (name: string) => restoreKey(name, 'results'),
  RestoreResourceList: (name: string) => restoreKey(name, 'resourceList'),
  RestoreItemOperations: (name: string) => restoreKey(name, 'itemOperations'),
  RestoreVolumeInfo: (name: string) => restoreKey(name, 'volumeInfos'),
} as const;

export type DownloadKind = keyof typeof DOWNLOADS;
export const DOWNLOAD_KINDS = Object.keys(DOWNLOADS) as DownloadKind[];

export const downloadOwner = (kind: DownloadKind): 'Backup' | 'Restore' =>
  kind.startsWith('Restore') ? 'Restore' : 'Backup';

export const isDownloadKind = (kind: string): kind is DownloadKind =>
  Object.hasOwn(DOWNLOADS, kind);

/** Throws `BAD_DOWNLOAD_KIND` for an unknown kind, and `BAD_ARCHIVE_NAME`. */
export function downloadKey(kind: string, name: string): string {
  if (isDownloadKind(kind)) return DOWNLOADS[kind](name);
  throw new CodedError('BAD_DOWNLOAD_KIND', `unsupported download target kind "${kind}"`);
}

/**
 * Backups and Restores have DNS subdomains as names. Other names come from a foreign writer to the
 * bucket, and must not become part of a key or path. Throws `BAD_ARCHIVE_NAME`.
 */
function assertName(name: string): string {
  if (isArchiveName(name)) return name;
  const shown = JSON.stringify(name.slice(0, 100));
  throw new CodedError('BAD_ARCHIVE_NAME', `${shown} cannot be the name of a backup or restore`);
}

/** Whether a Backup or a Restore can have this name. */
export const isArchiveName = (name: string): boolean => name.length <= NAME_MAX && isName(name);

const NAME_MAX = 253;
const isName = (name: string): boolean =>
  /^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$/.test(name) && !name.includes('..');

/**
 * Velero's sentence about foreign folders in a location, and their number; undefined if there are
 * none. Keeps only the named folders in memory.
 */
export async function foreignFolders(
  folders: AsyncIterable<string>,
): Promise<{ readonly text: string; readonly count: number } | undefined> {
  let named: string[] = [];
  let count = 0;
  for await (const folder of folders) {
    if (TOP_FOLDERS.includes(folder)) continue;
    count++;
    named = [...named, folder].sort().slice(0, NAMED_FOLDERS_MAX);
  }
  if (count === 0) return undefined;
  const list = named.join(' ');
  const text =
    count > NAMED_FOLDERS_MAX
      ? `Backup store contains ${count} invalid top-level directories: [${list} ...]`
      : `Backup store contains invalid top-level directories: [${list}]`;
  return { text, count };
}
