import type { LabelSelector } from '../../base/index.ts';
import type { KubeObject } from './core.ts';

/** Velero's Backup (pkg/apis/velero/v1/backup_types.go), with the fields read here. */
export interface Backup extends KubeObject {
  spec: BackupSpec;
  status?: BackupStatus;
}

/** The older filters of a spec. */
export interface OldLists {
  includedResources?: readonly string[] | null | undefined;
  excludedResources?: readonly string[] | null | undefined;
  /** Undefined: cluster-scoped objects are included only if all namespaces are included. */
  includeClusterResources?: boolean | null | undefined;
}

/** The newer filters, one pair for each scope. */
export interface ScopedLists {
  includedNamespaceScopedResources?: readonly string[] | null | undefined;
  excludedNamespaceScopedResources?: readonly string[] | null | undefined;
  includedClusterScopedResources?: readonly string[] | null | undefined;
  excludedClusterScopedResources?: readonly string[] | null | undefined;
}

export interface BackupSpec extends OldLists, ScopedLists {
  includedNamespaces?: readonly string[] | null | undefined;
  excludedNamespaces?: readonly string[] | null | undefined;
  labelSelector?: LabelSelector | null | undefined;
  orLabelSelectors?: readonly LabelSelector[] | null | undefined;
  snapshotVolumes?: boolean | null;
  snapshotMoveData?: boolean | null;
  /** `Full` reads all data of volumes again; Velero 1.19. */
  backupType?: 'Full' | 'Incremental' | '' | null;
  datamover?: string;
  /** Durations are as Go writes them, such as `720h0m0s`. */
  ttl?: string;
  csiSnapshotTimeout?: string;
  itemOperationTimeout?: string;
  volumeGroupSnapshotLabelKey?: string;
  defaultVolumesToFsBackup?: boolean | null;
  defaultVolumesToRestic?: boolean | null;
  storageLocation?: string;
  volumeSnapshotLocations?: readonly string[] | null;
  resourcePolicy?: { readonly kind: string; readonly name: string } | null;
  uploaderConfig?: { readonly parallelFilesUpload?: number } | null;
  /** Plural names as keys. Values: names or `namespace/name`, comma-separated. */
  orderedResources?: Readonly<Record<string, string>> | null;
  hooks?: { readonly resources?: readonly HookSpec[] | null } | null;
}

export interface HookSpec {
  readonly name?: string;
  readonly includedNamespaces?: readonly string[] | null;
  readonly excludedNamespaces?: readonly string[] | null;
  readonly includedResources?: readonly string[] | null;
  readonly excludedResources?: readonly string[] | null;
  readonly labelSelector?: LabelSelector | null;
  readonly pre?: readonly ResourceHook[] | null;
  readonly post?: readonly ResourceHook[] | null;
}

export interface ResourceHook {
  readonly exec?: ExecHook | null;
}

export interface ExecHook {
  readonly container?: string;
  readonly command?: readonly string[] | null;
  /** `Fail` stops the backup of the pod. All other values continue. */
  readonly onError?: string;
  readonly timeout?: string;
}

export interface BackupStatus {
  version?: number;
  formatVersion?: string;
  phase?: string;
  /** All times are RFC 3339 in whole seconds. */
  startTimestamp?: string | null;
  completionTimestamp?: string | null;
  expiration?: string | null;
  validationErrors?: string[];
  failureReason?: string;
  queuePosition?: number;
  errors?: number;
  warnings?: number;
  progress?: { totalItems?: number; itemsBackedUp?: number };
  backupItemOperationsAttempted?: number;
  backupItemOperationsCompleted?: number;
  backupItemOperationsFailed?: number;
  csiVolumeSnapshotsCompleted?: number;
}
