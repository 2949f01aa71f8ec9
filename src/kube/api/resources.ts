import type {
  ClusterRoleBinding,
  ConfigMap,
  DaemonSet,
  Deployment,
  Event,
  Job,
  KubeObject,
  Lease,
  Node,
  PersistentVolume,
  PersistentVolumeClaim,
  Pod,
  PolicyBinding,
  PriorityClass,
  Secret,
  StorageClass,
  VolumeAttachment,
  VolumeSnapshot,
  VolumeGroupSnapshot,
  VolumeGroupSnapshotClass,
  VolumeGroupSnapshotContent,
  VolumeSnapshotClass,
  VolumeSnapshotContent,
} from './core.ts';
import { VELERO_GROUP } from './crd.ts';
import type {
  BackupRepositorySpec,
  BackupRepositoryStatus,
  DataDownloadSpec,
  DataDownloadStatus,
  DataUploadSpec,
  DataUploadStatus,
  PodVolumeBackupSpec,
  PodVolumeBackupStatus,
  PodVolumeRestoreSpec,
  PodVolumeRestoreStatus,
} from './schema.ts';

/** `parentSnapshot` of a DataUpload or PodVolumeBackup that reads all data again; Velero 1.19. */
export const NO_PARENT = 'none';

export interface DataUpload extends KubeObject {
  spec: DataUploadSpec;
  status?: DataUploadStatus;
}

export interface DataDownload extends KubeObject {
  spec: DataDownloadSpec;
  status?: DataDownloadStatus;
}

export interface BackupRepository extends KubeObject {
  spec: BackupRepositorySpec;
  status?: BackupRepositoryStatus;
}

/** Velero 1.18: pkg/apis/velero/v1/backupstoragelocation_types.go, with the fields read here. */
export interface BackupStorageLocation extends KubeObject {
  spec?: {
    provider?: string;
    config?: Record<string, string>;
    credential?: { name: string; key: string };
    objectStorage?: {
      bucket?: string;
      prefix?: string;
      /** Base64 of PEM. */
      caCert?: string;
      caCertRef?: { name: string; key: string };
    };
    default?: boolean;
    accessMode?: 'ReadOnly' | 'ReadWrite';
    /** Go durations. */
    backupSyncPeriod?: string | null;
    validationFrequency?: string | null;
  };
  status?: {
    phase?: 'Available' | 'Unavailable';
    message?: string;
    /** RFC 3339. */
    lastValidationTime?: string | null;
    lastSyncedTime?: string | null;
  };
}

/** Files that a DownloadRequest can name (pkg/apis/velero/v1/download_request_types.go). */
export type DownloadTargetKind =
  | 'BackupLog'
  | 'BackupContents'
  | 'BackupVolumeSnapshots'
  | 'BackupItemOperations'
  | 'BackupResourceList'
  | 'BackupResults'
  | 'RestoreLog'
  | 'RestoreResults'
  | 'RestoreResourceList'
  | 'RestoreItemOperations'
  | 'CSIBackupVolumeSnapshots'
  | 'CSIBackupVolumeSnapshotContents'
  | 'BackupVolumeInfos'
  | 'RestoreVolumeInfo';

/** A client's request for the URL of a file of a backup or restore. */
export interface DownloadRequest extends KubeObject {
  spec?: { target?: { kind: DownloadTargetKind; name: string } };
  status?: {
    /** `Failed`, with a message: since Velero 1.19. */
    phase?: 'New' | 'Processed' | 'Failed';
    message?: string;
    downloadURL?: string;
    /** RFC 3339. After this time the request may be deleted. */
    expiration?: string | null;
  };
}

/** A request for version and plugins (pkg/apis/velero/v1/server_status_request_types.go). */
export interface ServerStatusRequest extends KubeObject {
  status?: {
    phase?: 'New' | 'Processed';
    processedTimestamp?: string | null;
    serverVersion?: string;
    plugins?: { name: string; kind: string }[] | null;
  };
}

/** The identity of a user (authentication.k8s.io/v1). */
export interface UserInfo {
  readonly username?: string;
  readonly uid?: string;
  readonly groups?: readonly string[];
  readonly extra?: Readonly<Record<string, readonly string[]>>;
}

/** Asks for the owner of a token. */
export interface TokenReview extends KubeObject {
  readonly spec: { readonly token: string; readonly audiences?: readonly string[] };
  readonly status?: {
    readonly authenticated?: boolean;
    readonly user?: UserInfo;
    /** The audiences from the request that the token is valid for. */
    readonly audiences?: readonly string[];
  };
}

/** Asks whether a user may do something (authorization.k8s.io/v1). */
export interface SubjectAccessReview extends KubeObject {
  readonly spec: {
    readonly user: string;
    readonly uid?: string;
    readonly groups?: readonly string[];
    readonly extra?: Readonly<Record<string, readonly string[]>>;
    readonly resourceAttributes: {
      readonly namespace: string;
      readonly verb: string;
      readonly group: string;
      readonly resource: string;
    };
  };
  readonly status?: { readonly allowed?: boolean; readonly denied?: boolean };
}

/** A `spec.datamover` whose snapshots are in the repository of the volume's namespace. */
interface RepositoryMover {
  readonly name: string;
  readonly isVeleros: boolean;
  /** Whether our agents back up and restore for it. */
  readonly isServed: boolean;
}

/**
 * The only list of data movers. Some are deleted but not served: `velero-block` of Velero 1.19
 * stores blocks in its own layout, and is deleted like any other snapshot.
 */
const REPOSITORY_MOVERS: readonly RepositoryMover[] = [
  { name: '', isVeleros: true, isServed: true },
  { name: 'velero', isVeleros: true, isServed: true },
  { name: 'velero-fs', isVeleros: true, isServed: true },
  { name: 'velero-block', isVeleros: true, isServed: false },
  { name: 'longshore', isVeleros: false, isServed: true },
];
const namesOf = (movers: readonly RepositoryMover[]): string[] => movers.map(({ name }) => name);

/** All movers whose snapshots a deletion finds in the repository. */
export const KNOWN_MOVERS: ReadonlySet<string> = new Set(namesOf(REPOSITORY_MOVERS));
/** Movers that our agents can replace, and whose snapshots they can read. */
export const SERVED_MOVERS: ReadonlySet<string> = new Set(
  namesOf(REPOSITORY_MOVERS.filter(({ isServed }) => isServed)),
);
/** Velero's own movers that ours replaces. `velero-fs` exists since 1.19. */
export const BUILT_IN_MOVERS: readonly string[] = namesOf(
  REPOSITORY_MOVERS.filter(({ isVeleros, isServed }) => isVeleros && isServed),
);
export const isBuiltInMover = (dataMover = ''): boolean => BUILT_IN_MOVERS.includes(dataMover);
/** A mover of Velero 1.19 that only Velero's own agents serve. */
export const BLOCK_MOVER = 'velero-block';

/** A request to back up a volume of a running pod. */
export interface PodVolumeBackup extends KubeObject {
  spec: PodVolumeBackupSpec;
  status?: PodVolumeBackupStatus;
}

/** A request to restore a snapshot into a volume of a waiting pod. */
export interface PodVolumeRestore extends KubeObject {
  spec: PodVolumeRestoreSpec;
  status?: PodVolumeRestoreStatus;
}

/** A kind of object and its path on the API server. */
export interface Resource<T extends KubeObject> {
  /** `''` for the core group. */
  readonly group: string;
  readonly version: string;
  readonly kind: string;
  readonly plural: string;
  readonly namespaced: boolean;
  /** Never set: binds the object type to the resource. */
  readonly object?: T;
}

const resource = <T extends KubeObject>(
  group: string,
  version: string,
  kind: string,
  plural: string,
  namespaced = true,
): Resource<T> => ({ group, version, kind, plural, namespaced });

export const DATA_UPLOADS = resource<DataUpload>(
  VELERO_GROUP,
  'v2alpha1',
  'DataUpload',
  'datauploads',
);
export const DATA_DOWNLOADS = resource<DataDownload>(
  VELERO_GROUP,
  'v2alpha1',
  'DataDownload',
  'datadownloads',
);
export const POD_VOLUME_BACKUPS = resource<PodVolumeBackup>(
  VELERO_GROUP,
  'v1',
  'PodVolumeBackup',
  'podvolumebackups',
);
export const POD_VOLUME_RESTORES = resource<PodVolumeRestore>(
  VELERO_GROUP,
  'v1',
  'PodVolumeRestore',
  'podvolumerestores',
);
export const BACKUP_REPOSITORIES = resource<BackupRepository>(
  VELERO_GROUP,
  'v1',
  'BackupRepository',
  'backuprepositories',
);
export const BACKUP_STORAGE_LOCATIONS = resource<BackupStorageLocation>(
  VELERO_GROUP,
  'v1',
  'BackupStorageLocation',
  'backupstoragelocations',
);
export const DOWNLOAD_REQUESTS = resource<DownloadRequest>(
  VELERO_GROUP,
  'v1',
  'DownloadRequest',
  'downloadrequests',
);
export const SERVER_STATUS_REQUESTS = resource<ServerStatusRequest>(
  VELERO_GROUP,
  'v1',
  'ServerStatusRequest',
  'serverstatusrequests',
);
export const VOLUME_SNAPSHOT_LOCATIONS = resource<KubeObject>(
  VELERO_GROUP,
  'v1',
  'VolumeSnapshotLocation',
  'volumesnapshotlocations',
);
export const BACKUPS = resource<KubeObject>(VELERO_GROUP, 'v1', 'Backup', 'backups');
export const DELETE_BACKUP_REQUESTS = resource<KubeObject>(
  VELERO_GROUP,
  'v1',
  'DeleteBackupRequest',
  'deletebackuprequests',
);
export const RESTORES = resource<KubeObject>(VELERO_GROUP, 'v1', 'Restore', 'restores');
export const SCHEDULES = resource<KubeObject>(VELERO_GROUP, 'v1', 'Schedule', 'schedules');
export const CLUSTER_ROLE_BINDINGS = resource<ClusterRoleBinding>(
  'rbac.authorization.k8s.io',
  'v1',
  'ClusterRoleBinding',
  'clusterrolebindings',
  false,
);
export const ROLE_BINDINGS = resource<ClusterRoleBinding>(
  'rbac.authorization.k8s.io',
  'v1',
  'RoleBinding',
  'rolebindings',
);
export const POLICY_BINDINGS = resource<PolicyBinding>(
  'admissionregistration.k8s.io',
  'v1',
  'ValidatingAdmissionPolicyBinding',
  'validatingadmissionpolicybindings',
  false,
);
export const PODS = resource<Pod>('', 'v1', 'Pod', 'pods');
export const PVCS = resource<PersistentVolumeClaim>(
  '',
  'v1',
  'PersistentVolumeClaim',
  'persistentvolumeclaims',
);
export const PVS = resource<PersistentVolume>(
  '',
  'v1',
  'PersistentVolume',
  'persistentvolumes',
  false,
);
export const NODES = resource<Node>('', 'v1', 'Node', 'nodes', false);
export const SECRETS = resource<Secret>('', 'v1', 'Secret', 'secrets');
export const SERVICE_ACCOUNTS = resource<KubeObject>('', 'v1', 'ServiceAccount', 'serviceaccounts');
export const CONFIG_MAPS = resource<ConfigMap>('', 'v1', 'ConfigMap', 'configmaps');
export const EVENTS = resource<Event>('', 'v1', 'Event', 'events');
export const NAMESPACES = resource<KubeObject>('', 'v1', 'Namespace', 'namespaces', false);
export const CUSTOM_RESOURCE_DEFINITIONS = resource<KubeObject>(
  'apiextensions.k8s.io',
  'v1',
  'CustomResourceDefinition',
  'customresourcedefinitions',
  false,
);
export const DAEMON_SETS = resource<DaemonSet>('apps', 'v1', 'DaemonSet', 'daemonsets');
export const DEPLOYMENTS = resource<Deployment>('apps', 'v1', 'Deployment', 'deployments');
export const JOBS = resource<Job>('batch', 'v1', 'Job', 'jobs');
export const LEASES = resource<Lease>('coordination.k8s.io', 'v1', 'Lease', 'leases');
export const STORAGE_CLASSES = resource<StorageClass>(
  'storage.k8s.io',
  'v1',
  'StorageClass',
  'storageclasses',
  false,
);
export const VOLUME_ATTACHMENTS = resource<VolumeAttachment>(
  'storage.k8s.io',
  'v1',
  'VolumeAttachment',
  'volumeattachments',
  false,
);
export const PRIORITY_CLASSES = resource<PriorityClass>(
  'scheduling.k8s.io',
  'v1',
  'PriorityClass',
  'priorityclasses',
  false,
);
export const TOKEN_REVIEWS = resource<TokenReview>(
  'authentication.k8s.io',
  'v1',
  'TokenReview',
  'tokenreviews',
  false,
);
export const SUBJECT_ACCESS_REVIEWS = resource<SubjectAccessReview>(
  'authorization.k8s.io',
  'v1',
  'SubjectAccessReview',
  'subjectaccessreviews',
  false,
);
const SNAPSHOT_GROUP = 'snapshot.storage.k8s.io';
export const VOLUME_SNAPSHOTS = resource<VolumeSnapshot>(
  SNAPSHOT_GROUP,
  'v1',
  'VolumeSnapshot',
  'volumesnapshots',
);
export const VOLUME_SNAPSHOT_CONTENTS = resource<VolumeSnapshotContent>(
  SNAPSHOT_GROUP,
  'v1',
  'VolumeSnapshotContent',
  'volumesnapshotcontents',
  false,
);
export const VOLUME_SNAPSHOT_CLASSES = resource<VolumeSnapshotClass>(
  SNAPSHOT_GROUP,
  'v1',
  'VolumeSnapshotClass',
  'volumesnapshotclasses',
  false,
);

const GROUP_SNAPSHOT_GROUP = 'groupsnapshot.storage.k8s.io';
export const VOLUME_GROUP_SNAPSHOTS = resource<VolumeGroupSnapshot>(
  GROUP_SNAPSHOT_GROUP,
  'v1beta2',
  'VolumeGroupSnapshot',
  'volumegroupsnapshots',
);
export const VOLUME_GROUP_SNAPSHOT_CONTENTS = resource<VolumeGroupSnapshotContent>(
  GROUP_SNAPSHOT_GROUP,
  'v1beta2',
  'VolumeGroupSnapshotContent',
  'volumegroupsnapshotcontents',
  false,
);
export const VOLUME_GROUP_SNAPSHOT_CLASSES = resource<VolumeGroupSnapshotClass>(
  GROUP_SNAPSHOT_GROUP,
  'v1beta2',
  'VolumeGroupSnapshotClass',
  'volumegroupsnapshotclasses',
  false,
);

export const apiVersionOf = ({ group, version }: Resource<KubeObject>): string =>
  group === '' ? version : `${group}/${version}`;
