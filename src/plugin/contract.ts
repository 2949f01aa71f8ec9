import type { Logger } from '../base/index.ts';
import type { Backup, KubeObject, Restore } from '../kube/index.ts';

/**
 * Context of a call. The caller of an action is Velero's server, through the protocol, or our
 * server in its own process. The interfaces here are Velero's (pkg/plugin/velero) plus a signal,
 * which ends when the host no longer waits.
 */
export interface CallContext {
  readonly signal: AbortSignal;
}

/** Items that an action applies to. An empty selector means all. */
export interface ResourceSelector {
  readonly includedNamespaces?: readonly string[];
  readonly excludedNamespaces?: readonly string[];
  /** For example `persistentvolumeclaims` or `datauploads.velero.io`. */
  readonly includedResources?: readonly string[];
  readonly excludedResources?: readonly string[];
  /** A label selector in kubectl's syntax. */
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
  /** The error of a failed operation. */
  readonly err: string;
  readonly nCompleted: number;
  readonly nTotal: number;
  readonly operationUnits: string;
  readonly description: string;
  /** RFC 3339; undefined if unknown. */
  readonly started: string | undefined;
  readonly updated: string | undefined;
}

export interface BackupOutput {
  /** Undefined if the item is unchanged. */
  readonly item?: KubeObject;
  readonly additionalItems?: readonly ResourceIdentifier[];
  /** `''` or undefined: no operation was started. */
  readonly operationId?: string;
  /** Stored again when the operation has ended. */
  readonly postOperationItems?: readonly ResourceIdentifier[];
}

export interface RestoreInput {
  readonly item: KubeObject;
  readonly itemFromBackup: KubeObject;
  readonly restore: Restore;
  /** A PVC's PersistentVolume in the backup, if any. Only our server passes this function. */
  readonly volumeFromBackup?: () => Promise<KubeObject | undefined>;
  /** The Backup from the start of the restore. Only our server passes it. */
  readonly backup?: RestoredBackup | undefined;
}

/** The parts of a Backup that restore actions read. */
export interface RestoredBackup {
  readonly spec: Pick<
    Backup['spec'],
    'snapshotMoveData' | 'csiSnapshotTimeout' | 'storageLocation'
  >;
}

export interface RestoreOutput {
  readonly item?: KubeObject;
  readonly additionalItems?: readonly ResourceIdentifier[];
  readonly skipRestore?: boolean;
  readonly operationId?: string;
  /** Restore the item only after `areAdditionalItemsReady` returns true. */
  readonly waitForAdditionalItems?: boolean;
  /** 0 or undefined: the server's time limit for resources. */
  readonly additionalItemsReadyTimeoutMs?: number;
}

/** Actions without operations omit `progress` and `cancel`. */
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
  areAdditionalItemsReady?(
    items: readonly ResourceIdentifier[],
    restore: Restore,
    context: CallContext,
  ): Promise<boolean>;
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

/** Storage of backups. All calls may be repeated; keys have no leading slash. */
export interface ObjectStore {
  /** Reads the body at the plugin's pace, until an error. Owns the buffers of the body. */
  put(
    bucket: string,
    key: string,
    body: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    context: CallContext,
  ): Promise<void>;
  /** Yields the bytes in order. Leaving the loop ends the transfer. A truncated object throws. */
  get(bucket: string, key: string, context: CallContext): AsyncIterable<Uint8Array>;
  exists(bucket: string, key: string, context: CallContext): Promise<boolean>;
  list(bucket: string, prefix: string, context: CallContext): Promise<readonly string[]>;
  /** Full prefixes, each with the delimiter at its end. */
  listCommonPrefixes(
    bucket: string,
    delimiter: string,
    prefix: string,
    context: CallContext,
  ): Promise<readonly string[]>;
  delete(bucket: string, key: string, context: CallContext): Promise<void>;
  signedUrl(bucket: string, key: string, ttlMs: number, context: CallContext): Promise<string>;
}

/** Snapshots through a provider's own API, for volumes without a CSI driver. */
export interface VolumeSnapshotter {
  createVolume(
    from: {
      readonly snapshotId: string;
      readonly volumeType: string;
      readonly zone: string;
      readonly iops?: number | undefined;
    },
    context: CallContext,
  ): Promise<string>;
  volumeInfo(
    volumeId: string,
    zone: string,
    context: CallContext,
  ): Promise<{ readonly volumeType: string; readonly iops: number | undefined }>;
  createSnapshot(
    volumeId: string,
    zone: string,
    tags: Readonly<Record<string, string>>,
    context: CallContext,
  ): Promise<string>;
  deleteSnapshot(snapshotId: string, context: CallContext): Promise<void>;
  /** `''` for a PersistentVolume of another provider. */
  volumeIdOf(persistentVolume: KubeObject, context: CallContext): Promise<string>;
  withVolumeId(
    persistentVolume: KubeObject,
    volumeId: string,
    context: CallContext,
  ): Promise<KubeObject>;
}

interface Registered<Kind extends string, Action> {
  readonly kind: Kind;
  /** `<DNS subdomain>/<name>`, unique for its kind. */
  readonly name: string;
  readonly appliesTo: ResourceSelector;
  /**
   * Called once, on first use: most processes only list. `logger`: for a process that serves
   * several backups. A backup counts the warnings and errors logged there.
   */
  readonly open: (logger?: Logger) => Promise<Action>;
}

/** An action and its name. Velero's kinds: pkg/plugin/framework/common/plugin_kinds.go. */
export type Plugin =
  | Registered<'BackupItemActionV2', BackupItemAction>
  | Registered<'RestoreItemActionV2', RestoreItemAction>
  | Registered<'DeleteItemAction', DeleteItemAction>
  | Registered<'ItemBlockAction', ItemBlockAction>;

export type PluginKind = Plugin['kind'];
