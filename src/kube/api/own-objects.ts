import { createHash } from 'node:crypto';
import { lookup } from '../../base/index.ts';
import type { KubeObject } from './core.ts';
import { VELERO_GROUP } from './crd.ts';

/** Objects of Velero and Longshore themselves, and the backups that they belong to. */

/** Label that keeps an object out of every backup, of Velero and of Longshore. */
export const NOT_IN_BACKUPS = { 'velero.io/exclude-from-backup': 'true' } as const;

/**
 * The volume with the TLS key of server and agents (`manifests/tls`). Data movers and maintenance
 * Jobs do not get it: they serve nothing.
 */
export const TLS_VOLUME = 'longshore-tls';

/**
 * Labels on objects of a backup or restore: the name in the form of a label, and the UID of a
 * backup. Velero: pkg/apis/velero/v1/labels_annotations.go.
 */
export const BACKUP_NAME = 'velero.io/backup-name';
export const BACKUP_UID = 'velero.io/backup-uid';
export const RESTORE_NAME = 'velero.io/restore-name';
const OPERATION_ID = 'velero.io/async-operation-id';
/** Label on Backups: the UID of their Schedule. Two clusters may have Schedules of one name. */
export const SCHEDULE_UID = 'longshore.io/schedule-uid';
/** Annotation on a synced Backup: the Schedule UID from the bucket, trusted like the bucket. */
export const SYNCED_SCHEDULE_UID = 'longshore.io/synced-schedule-uid';
/**
 * Annotation on a Backup that the sync created: the UID under which its files were stored. Only the
 * sync sets it. Labels of a synced Backup come from the bucket and prove nothing.
 */
export const SYNCED_UID = 'longshore.io/synced-uid';
/**
 * Annotation on a Backup whose files were signed when this cluster last read or wrote them. A
 * writer to the bucket can remove the signature, but not this annotation.
 */
export const SIGNED = 'longshore.io/signed';
/**
 * Annotation on a finished Backup: the signature of its files. A writer to the bucket can bring
 * back files of an earlier state, which are signed as well.
 */
export const SIGNATURE = 'longshore.io/signature';

/** Whether the sync created this Backup from files in the bucket. */
export const isSynced = ({ metadata }: Pick<KubeObject, 'metadata'>): boolean =>
  metadata.annotations?.[SYNCED_UID] !== undefined;

/** Identifies the objects of a backup's operations. */
export interface BackupIdentity {
  readonly name: string;
  /**
   * UID that the objects carry. In the bucket this is the UID of the stored Backup. A synced Backup
   * has another UID, and so have the PodVolumeBackups synced with it.
   */
  readonly uid: string;
  /** Velero's namespace at the time of the backup. Tenants can write objects elsewhere. */
  readonly namespace?: string | undefined;
  /** From the item operations file. Undefined if the file is missing or names no operation. */
  readonly operationIds?: ReadonlySet<string> | undefined;
}

/**
 * Whether a PodVolumeBackup belongs to this very backup. A backup of all namespaces also holds the
 * operations of earlier backups. A missing UID label is accepted because very old Velero wrote
 * none.
 */
export function isOfBackup({ metadata }: KubeObject, backup: BackupIdentity): boolean {
  const { labels: given, namespace } = metadata;
  const labels = given ?? {};
  if (labels[BACKUP_NAME] !== validLabel(backup.name)) return false;
  if ((labels[BACKUP_UID] ?? backup.uid) !== backup.uid) return false;
  return backup.namespace === undefined || namespace === backup.namespace;
}

/**
 * The same for a snapshot object outside Velero's namespace. Two installations may have backups of
 * one name. Restored objects carry the name of their backup too, but they belong to the user.
 */
export const isSnapshotOfBackup = (object: KubeObject, { name, uid }: BackupIdentity): boolean =>
  isOfBackup(object, { name, uid }) && object.metadata.labels?.[RESTORE_NAME] === undefined;

/** The same for a DataUpload. Without the file of operations, name and UID decide. */
export const isUploadOfBackup = (upload: KubeObject, backup: BackupIdentity): boolean =>
  isOfBackup(upload, backup) &&
  (backup.operationIds?.has(upload.metadata.labels?.[OPERATION_ID] ?? '') ?? true);

/** DataUploads point a restore to its data. Restores never create them. */
export const UPLOADS_TYPE = 'datauploads.velero.io';

/**
 * Requests, operations and records of Velero's groups. A restored request would run again.
 * Schedules and locations are configuration and are restored.
 */
const TRANSIENT_TYPES: ReadonlySet<string> = new Set(
  [
    ...['backups', 'restores', 'backuprepositories', 'resticrepositories'],
    ...['datauploads', 'datadownloads', 'podvolumebackups', 'podvolumerestores'],
    ...['deletebackuprequests', 'downloadrequests', 'serverstatusrequests'],
  ].map((plural) => `${plural}.${VELERO_GROUP}`),
);

export const isTransientType = (type: string): boolean => TRANSIENT_TYPES.has(type);

/** Operations and requests. A backup stores only its own, at its end. */
const NEVER_BACKED_UP = new Set(
  [...TRANSIENT_TYPES].filter((type) => !/^(backups|restores|.*repositories)\./.test(type)),
);

const TRANSIENT_KINDS = new Set([
  ...['Backup', 'Restore', 'BackupRepository', 'ResticRepository'],
  ...['DataUpload', 'DataDownload', 'PodVolumeBackup', 'PodVolumeRestore'],
  ...['DeleteBackupRequest', 'DownloadRequest', 'ServerStatusRequest'],
]);

/** Leases that allow only one active server, and one change of all passwords at a time. */
export const SERVER_LEASE = 'longshore-server';
export const PASSWORD_CHANGE_LEASE = 'longshore-password-change';
const LEASES = new Set([SERVER_LEASE, PASSWORD_CHANGE_LEASE]);

/**
 * Secret with the password of all repositories (Velero: pkg/repository/keys/keys.go). A second
 * Velero has one of this name in its own namespace.
 */
export const PASSWORD_SECRET = 'velero-repo-credentials';
/**
 * Secret with the keys that signed and encrypted archives. A tool may overwrite the password's
 * Secret, and old archives still need these keys. So the two Secrets are separate.
 */
export const ARCHIVE_KEYS_SECRET = 'longshore-archive-keys';
const OWN_SECRETS = new Set([PASSWORD_SECRET, ARCHIVE_KEYS_SECRET]);
/** ConfigMap with the times of the expiry controller. */
export const EXPIRY_NOTE = 'longshore-expiry';
/** Prefix of ConfigMaps with notes of running backups. */
export const UNDER_WAY_PREFIX = 'longshore-backup-';
/** Prefix of PersistentVolumes of restores in place. */
export const SECOND_VOLUME_PREFIX = 'longshore-in-place-';

/** Pods, and types with a pod template. */
const WORKLOADS = new Set(['pods', 'replicasets.apps', 'deployments.apps', 'daemonsets.apps']);

/** Labels of ConfigMaps about uploads, maintenance Jobs and their pods, and hosting pods. */
const OWN_LABELS = [
  ...['velero.io/resource-usage', 'velero.io/data-upload-snapshot-info', 'longshore.io/under-way'],
  ...['velero.io/repo-name', 'longshore.io/repo-maintenance'],
  ...['data-upload', 'data-download', 'pod-volume-backup', 'pod-volume-restore'].flatMap((kind) => [
    `velero.io/${kind}`,
    `longshore.io/${kind}`,
  ]),
];

/**
 * Whether an item of a backup is an object that Velero or Longshore made for themselves. If
 * restored, it could take over a server's lead, change a password or repeat old work. `namespaces`:
 * the namespaces of all Velero and Longshore servers.
 */
export function isOwnObject(
  type: string,
  { metadata, ...fields }: KubeObject,
  namespaces: ReadonlySet<string>,
): boolean {
  if (isTransientType(type)) return true;
  const { name, namespace = '', labels = {} } = metadata;
  if (ownersOf(metadata).some(isTransientOwner)) return true;
  if (type === 'persistentvolumes') return name.startsWith(SECOND_VOLUME_PREFIX);
  if (type === 'customresourcedefinitions.apiextensions.k8s.io') {
    // An older definition drops fields that the Restore itself may need.
    return name.endsWith(`.${VELERO_GROUP}`);
  }
  if (type === 'leases.coordination.k8s.io') return LEASES.has(name) || namespaces.has(namespace);
  if (type === 'secrets' && OWN_SECRETS.has(name)) return true;
  const { spec } = fields as { spec?: SnapshotSpec | null };
  const isExcluded = labels['velero.io/exclude-from-backup'] === 'true';
  if (type === 'volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io') return isExcluded;
  if (type === 'volumesnapshotcontents.snapshot.storage.k8s.io') {
    const ref = spec?.volumeSnapshotRef;
    return isExcluded || (ref?.name === name && namespaces.has(ref.namespace ?? ''));
  }
  if (!namespaces.has(namespace)) return false;
  if (isExcluded || OWN_LABELS.some((label) => Object.hasOwn(labels, label))) return true;
  if (WORKLOADS.has(type)) return isServer(spec);
  switch (type) {
    case 'configmaps':
      return name === EXPIRY_NOTE || name.startsWith(UNDER_WAY_PREFIX);
    case 'volumesnapshots.snapshot.storage.k8s.io':
      // Snapshots for a data mover: both objects have the name of the DataUpload.
      return spec?.source?.volumeSnapshotContentName === name;
    default:
      return false;
  }
}

/** Users can write items, so the fields are checked before use. */
const ownersOf = ({ ownerReferences }: { readonly ownerReferences?: unknown }): unknown[] =>
  Array.isArray(ownerReferences) ? ownerReferences : [];

function isTransientOwner(owner: unknown): boolean {
  const { apiVersion, kind } = (owner ?? {}) as Record<string, unknown>;
  const isVeleros = typeof apiVersion === 'string' && apiVersion.startsWith(`${VELERO_GROUP}/`);
  return isVeleros && typeof kind === 'string' && TRANSIENT_KINDS.has(kind);
}

/**
 * Whether containers run a server or a node-agent. A restored Velero server would run beside ours,
 * and its start fails running restores. An update would bring back the old version.
 */
function isServer(spec: unknown): boolean {
  const fieldOf = (value: unknown, key: string): unknown =>
    typeof value === 'object' ? lookup(value as Record<string, unknown> | null, key) : undefined;
  const podSpec = fieldOf(fieldOf(spec, 'template'), 'spec') ?? spec;
  const containers = fieldOf(podSpec, 'containers');
  if (!Array.isArray(containers)) return false;
  return containers.some((container) => {
    const words = ['command', 'args'].flatMap((key) => fieldOf(container, key) ?? []);
    const [program = '', ...args] = words.map(String);
    return /(^|\/)velero$/.test(program) && args.includes('server');
  });
}

interface SnapshotSpec {
  readonly source?: { readonly volumeSnapshotContentName?: string };
  readonly volumeSnapshotRef?: { readonly namespace?: string; readonly name?: string };
}

/** Whether a backup excludes an object unless one of its own operations names it. */
export const isLeftOutOfBackups = (type: string): boolean => NEVER_BACKED_UP.has(type);

const LABEL_MAX = 63;
const KEPT = 57;

/** Cuts a long label value and appends its hash. Velero: pkg/label, GetValidName. */
export function validLabel(text: string): string {
  if (text.length <= LABEL_MAX) return text;
  const hash = createHash('sha256').update(text).digest('hex');
  return text.slice(0, KEPT) + hash.slice(0, LABEL_MAX - KEPT);
}
