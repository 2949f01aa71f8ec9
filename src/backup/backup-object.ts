import type { LabelSelector } from '../base/index.ts';
import type { KubeObject } from '../kube/index.ts';
import type { OldLists, ScopedLists } from './filters/resources.ts';

/** The parts of Velero's Backup (velero.io/v1, pkg/apis/velero/v1/backup_types.go) that are looked at here. */
export interface Backup extends KubeObject {
  spec: BackupSpec;
  status?: BackupStatus;
}

export interface BackupSpec extends OldLists, ScopedLists {
  includedNamespaces?: readonly string[] | null | undefined;
  excludedNamespaces?: readonly string[] | null | undefined;
  labelSelector?: LabelSelector | null | undefined;
  orLabelSelectors?: readonly LabelSelector[] | null | undefined;
  snapshotMoveData?: boolean | null;
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
  /** By plural: names, or `namespace/name`, with commas between. */
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
  /** `Fail` ends what is done with the pod; anything else goes on. */
  readonly onError?: string;
  readonly timeout?: string;
}

export interface BackupStatus {
  version?: number;
  formatVersion?: string;
  /** RFC 3339 in whole seconds. */
  expiration?: string;
  validationErrors?: string[];
  progress?: { totalItems?: number; itemsBackedUp?: number };
}
