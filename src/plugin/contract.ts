import type { KubeObject } from '../kube/index.ts';

/**
 * What an item action is to whoever calls it: Velero's server through the protocol, or a server of ours in its own process. As Velero's
 * interfaces (pkg/plugin/velero), with a signal that ends when the host no longer waits.
 */
export interface CallContext {
  readonly signal: AbortSignal;
}

/** Which items an action is asked about. Nothing said means everything. */
export interface ResourceSelector {
  readonly includedNamespaces?: readonly string[];
  readonly excludedNamespaces?: readonly string[];
  /** Such as `persistentvolumeclaims` or `datauploads.velero.io`. */
  readonly includedResources?: readonly string[];
  readonly excludedResources?: readonly string[];
  /** A label selector as kubectl writes it. */
  readonly selector?: string;
}

export interface ResourceIdentifier {
  /** `''` for the core group. */
  readonly group: string;
  /** The plural in lower case. */
  readonly resource: string;
  readonly namespace: string;
  readonly name: string;
}

export interface OperationProgress {
  readonly completed: boolean;
  /** Of an operation that is over and has failed. */
  readonly err: string;
  readonly nCompleted: number;
  readonly nTotal: number;
  readonly operationUnits: string;
  readonly description: string;
  /** RFC 3339; undefined where nobody knows. */
  readonly started: string | undefined;
  readonly updated: string | undefined;
}

/** The parts of Velero's Backup (velero.io/v1) that actions look at. */
export interface Backup extends KubeObject {
  spec: {
    snapshotVolumes?: boolean | null;
    snapshotMoveData?: boolean | null;
    datamover?: string;
    storageLocation?: string;
    volumeSnapshotLocations?: string[] | null;
    defaultVolumesToFsBackup?: boolean | null;
    defaultVolumesToRestic?: boolean | null;
    /** A duration as Go writes it. */
    csiSnapshotTimeout?: string;
    resourcePolicy?: { kind: string; name: string } | null;
    uploaderConfig?: { parallelFilesUpload?: number } | null;
    volumeGroupSnapshotLabelKey?: string;
  };
  status?: { phase?: string };
}

/** The parts of Velero's Restore (velero.io/v1) that actions look at. */
export interface Restore extends KubeObject {
  spec: {
    backupName?: string;
    restorePVs?: boolean | null;
    namespaceMapping?: Record<string, string> | null;
    uploaderConfig?: { writeSparseFiles?: boolean | null; parallelFilesDownload?: number } | null;
  };
  status?: { phase?: string };
}

export interface BackupOutput {
  /** Undefined where it stays as it was. */
  readonly item?: KubeObject;
  readonly additionalItems?: readonly ResourceIdentifier[];
  /** `''` or nothing: no operation was started. */
  readonly operationId?: string;
  /** Stored anew when the operation is over. */
  readonly postOperationItems?: readonly ResourceIdentifier[];
}

export interface RestoreInput {
  readonly item: KubeObject;
  readonly itemFromBackup: KubeObject;
  readonly restore: Restore;
}

export interface RestoreOutput {
  readonly item?: KubeObject;
  readonly additionalItems?: readonly ResourceIdentifier[];
  readonly skipRestore?: boolean;
  readonly operationId?: string;
}

/** Actions without operations leave `progress` and `cancel` out. */
export interface BackupItemAction {
  execute(item: KubeObject, backup: Backup, context: CallContext): Promise<BackupOutput>;
  progress?(operationId: string, backup: Backup, context: CallContext): Promise<OperationProgress>;
  cancel?(operationId: string, backup: Backup, context: CallContext): Promise<void>;
}

export interface RestoreItemAction {
  execute(input: RestoreInput, context: CallContext): Promise<RestoreOutput>;
  progress?(
    operationId: string,
    restore: Restore,
    context: CallContext,
  ): Promise<OperationProgress>;
  cancel?(operationId: string, restore: Restore, context: CallContext): Promise<void>;
}

export interface DeleteItemAction {
  execute(item: KubeObject, backup: Backup, context: CallContext): Promise<void>;
}

export interface ItemBlockAction {
  relatedItems(
    item: KubeObject,
    backup: Backup,
    context: CallContext,
  ): Promise<readonly ResourceIdentifier[]>;
}

interface Registered<Kind extends string, Action> {
  readonly kind: Kind;
  /** `<DNS subdomain>/<name>`, unlike all others of its kind. */
  readonly name: string;
  readonly appliesTo: ResourceSelector;
  /** Called once, when the action is first needed: most processes only list. */
  readonly open: () => Promise<Action>;
}

/** An action under its name. The kinds are Velero's (pkg/plugin/framework/common/plugin_kinds.go). */
export type Plugin =
  | Registered<'BackupItemActionV2', BackupItemAction>
  | Registered<'RestoreItemActionV2', RestoreItemAction>
  | Registered<'DeleteItemAction', DeleteItemAction>
  | Registered<'ItemBlockAction', ItemBlockAction>;

export type PluginKind = Plugin['kind'];
