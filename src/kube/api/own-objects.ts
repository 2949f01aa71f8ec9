import { createHash } from 'node:crypto';
import { lookup } from '../../base/index.ts';
import type { KubeObject } from './core.ts';
import { VELERO_GROUP } from './crd.ts';

/**
 * Objects of Velero and Longshore themselves: which backup they belong to, and which are never an
 * application's.
 */

/**
 * Label that keeps an object out of every backup, of Velero and of Longshore. Put on objects when
 * they are created.
 */
export const NOT_IN_BACKUPS = { 'velero.io/exclude-from-backup': 'true' } as const;

/**
 * The volume with the TLS key of server and agents (`manifests/tls`). Pods that are made from their
 * pod templates do not get it: data movers and maintenance Jobs serve nothing.
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
/**
 * Label on Backups: which Schedule made each of them. Two clusters may have Schedules of one name.
 */
export const SCHEDULE_UID = 'longshore.io/schedule-uid';
/**
 * Annotation on a Backup that the sync created: that label in the bucket, to be trusted no more
 * than it.
 */
export const SYNCED_SCHEDULE_UID = 'longshore.io/synced-schedule-uid';
/**
 * Annotation on a Backup that the sync created: the UID that its files were stored under. Only the
 * sync sets it. Labels of such a Backup come from the bucket and prove nothing.
 */
export const SYNCED_UID = 'longshore.io/synced-uid';
/**
 * Annotation of a Backup whose files were signed when this cluster last read or wrote them. A
 * writer to the bucket can remove the signature. The annotation is out of reach.
 */
export const SIGNED = 'longshore.io/signed';

/** Whether the sync created this Backup from files in the bucket. */
export const isSynced = ({ metadata }: Pick<KubeObject, 'metadata'>): boolean =>
  metadata.annotations?.[SYNCED_UID] !== undefined;

/** What objects of a backup's operations must say to count as its own. */
export interface BackupIdentity {
  readonly name: string;
  /**
   * UID that the objects carry. In the bucket this is the UID of the Backup that was stored. A
   * synced Backup has another UID, and so have the PodVolumeBackups that were synced with it.
   */
  readonly uid: string;
  /**
   * Namespace of Velero when the backup was made. A tenant can write objects of any kind elsewhere.
   */
  readonly namespace?: string | undefined;
  /** From the item operations file. Undefined if the file is missing or names no operation. */
  readonly operationIds?: ReadonlySet<string> | undefined;
}

/**
 * Whether a PodVolumeBackup belongs to this very backup. A backup of all namespaces also holds the
 * operations of earlier backups. A missing UID label is accepted only because very old Velero wrote
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
 * The same of a snapshot object outside Velero's namespace. Two installations may have backups of
 * one name. Restores label the objects that they create with the name of their backup, and those
 * belong to the user.
 */
export const isSnapshotOfBackup = (object: KubeObject, { name, uid }: BackupIdentity): boolean =>
  isOfBackup(object, { name, uid }) && object.metadata.labels?.[RESTORE_NAME] === undefined;

/**
 * The same of a DataUpload, which always has an operation. Without its file, name and UID decide.
 */
export const isUploadOfBackup = (upload: KubeObject, backup: BackupIdentity): boolean =>
  isOfBackup(upload, backup) &&
  (backup.operationIds?.has(upload.metadata.labels?.[OPERATION_ID] ?? '') ?? true);

/** DataUploads lead a restore to its data. They are handed to the actions, and never created. */
export const UPLOADS_TYPE = 'datauploads.velero.io';

/**
 * Requests, operations and records of Velero's groups. A restored request would be
 * carried out again. Schedules and locations are configuration and are restored.
 */
const TRANSIENT_TYPES: ReadonlySet<string> = new Set(
  [
    ...['backups', 'restores', 'backuprepositories', 'resticrepositories'],
    ...['datauploads', 'datadownloads', 'podvolumebackups', 'podvolumerestores'],
    ...['deletebackuprequests', 'downloadrequests', 'serverstatusrequests'],
  ].map((plural) => `${plural}.${VELERO_GROUP}`),
);

export const isTransientType = (type: string): boolean => TRANSIENT_TYPES.has(type);

/** Operations and requests: a backup holds none but its own, which it stores when they are over. */
const NEVER_BACKED_UP = new Set(
  [...TRANSIENT_TYPES].filter((type) => !/^(backups|restores|.*repositories)\./.test(type)),
);

const TRANSIENT_KINDS = new Set([
  ...['Backup', 'Restore', 'BackupRepository', 'ResticRepository'],
  ...['DataUpload', 'DataDownload', 'PodVolumeBackup', 'PodVolumeRestore'],
  ...['DeleteBackupRequest', 'DownloadRequest', 'ServerStatusRequest'],
]);

/** Leases by which one server, or one change of all passwords, works at a time. */
export const SERVER_LEASE = 'longshore-server';
export const PASSWORD_CHANGE_LEASE = 'longshore-password-change';
const LEASES = new Set([SERVER_LEASE, PASSWORD_CHANGE_LEASE]);

/**
 * Secret with the password of all repositories (Velero: pkg/repository/keys/keys.go). A second
 * Velero has one of this name in its own namespace.
 */
export const PASSWORD_SECRET = 'velero-repo-credentials';
/**
 * Secret with the keys that have signed and encrypted archives. A tool may write the password's
 * Secret anew, and must not remove the keys of old archives with that.
 */
export const ARCHIVE_KEYS_SECRET = 'longshore-archive-keys';
const OWN_SECRETS = new Set([PASSWORD_SECRET, ARCHIVE_KEYS_SECRET]);
/** ConfigMap with the times of the expiry controller. */
export const EXPIRY_NOTE = 'longshore-expiry';
/** Names of ConfigMaps with notes of backups under way begin with it. */
export const UNDER_WAY_PREFIX = 'longshore-backup-';
/** Names of PersistentVolumes of restores in place begin with it. */
export const SECOND_VOLUME_PREFIX = 'longshore-in-place-';

/** Each has a template of pods, or is a pod. */
const WORKLOADS = new Set(['pods', 'replicasets.apps', 'deployments.apps', 'daemonsets.apps']);

/** Labels of ConfigMaps about uploads, of maintenance Jobs and their pods, and of hosting pods. */
const OWN_LABELS = [
  ...['velero.io/resource-usage', 'velero.io/data-upload-snapshot-info', 'longshore.io/under-way'],
  ...['velero.io/repo-name', 'longshore.io/repo-maintenance'],
  ...['data-upload', 'data-download', 'pod-volume-backup', 'pod-volume-restore'].flatMap((kind) => [
    `velero.io/${kind}`,
    `longshore.io/${kind}`,
  ]),
];

/**
 * Whether an item of a backup is an object that Velero or Longshore made for themselves. Restored
 * ones would take a server's lead, change a password or repeat old work. `namespaces`: those that a
 * Velero or Longshore runs in.
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
    // An older one drops fields that the Restore itself may need.
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
      // Snapshots that a data mover reads from: both objects have the name of the DataUpload.
      return spec?.source?.volumeSnapshotContentName === name;
    default:
      return false;
  }
}

/** Anybody may have written the item: its fields are checked before they are used. */
const ownersOf = ({ ownerReferences }: { readonly ownerReferences?: unknown }): unknown[] =>
  Array.isArray(ownerReferences) ? ownerReferences : [];

function isTransientOwner(owner: unknown): boolean {
  const { apiVersion, kind } = (owner ?? {}) as Record<string, unknown>;
  const isVeleros = typeof apiVersion === 'string' && apiVersion.startsWith(`${VELERO_GROUP}/`);
  return isVeleros && typeof kind === 'string' && TRANSIENT_KINDS.has(kind);
}

/**
 * Whether containers run a server or a node-agent. A restored Velero server would run beside ours,
 * and its start fails running restores. An update would bring back the version at the time of the
 * backup.
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

/** Whether a backup leaves an object out unless one of its own operations names it. */
export const isLeftOutOfBackups = (type: string): boolean => NEVER_BACKED_UP.has(type);

const LABEL_MAX = 63;
const KEPT = 57;

/** Cuts a long label value, and ends it in its hash. Velero: pkg/label, GetValidName. */
export function validLabel(text: string): string {
  if (text.length <= LABEL_MAX) return text;
  const hash = createHash('sha256').update(text).digest('hex');
  return text.slice(0, KEPT) + hash.slice(0, LABEL_MAX - KEPT);
}
