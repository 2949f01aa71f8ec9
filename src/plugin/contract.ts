import type { Logger } from '../base/index.ts';
import type { Backup, KubeObject, Restore } from '../kube/index.ts';

/**
 * What an item action is to whoever calls it: Velero's server through the protocol, or a server of
 * ours in its own process. As Velero's interfaces (pkg/plugin/velero), with a signal that ends when
 * the host no longer waits.
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
  /**
   * Of a PVC: the PersistentVolume that it had, as it is in the backup; undefined where the backup
   * does not have it. Left out where another server than ours restores.
   */
  readonly volumeFromBackup?: () => Promise<KubeObject | undefined>;
  /** The Backup, as the run of the restore found it. Only our server hands it in. */
  readonly backup?: RestoredBackup | undefined;
}

/** The parts of a Backup that restore actions look at. */
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
  /** The item is restored once `areAdditionalItemsReady` says so. */
  readonly waitForAdditionalItems?: boolean;
  /** 0 or nothing: as long as the server waits for resources. */
  readonly additionalItemsReadyTimeoutMs?: number;
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

/** Where backups are kept. All calls may be repeated; keys have no leading slash. */
export interface ObjectStore {
  /**
   * Reads the body no faster than the plugin takes it, and leaves it where the call fails. Owns the
   * buffers of the body.
   */
  put(
    bucket: string,
    key: string,
    body: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    context: CallContext,
  ): Promise<void>;
  /**
   * In the order of the object; leaving the loop ends the transfer. An object that breaks off
   * throws.
   */
  get(bucket: string, key: string, context: CallContext): AsyncIterable<Uint8Array>;
  exists(bucket: string, key: string, context: CallContext): Promise<boolean>;
  list(bucket: string, prefix: string, context: CallContext): Promise<readonly string[]>;
  /** Whole prefixes, each with the delimiter at its end. */
  listCommonPrefixes(
    bucket: string,
    delimiter: string,
    prefix: string,
    context: CallContext,
  ): Promise<readonly string[]>;
  delete(bucket: string, key: string, context: CallContext): Promise<void>;
  signedUrl(bucket: string, key: string, ttlMs: number, context: CallContext): Promise<string>;
}

/** Snapshots of volumes by a provider's own API, for volumes without a CSI driver. */
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
  /** `''` for a PersistentVolume that is not of this provider. */
  volumeIdOf(persistentVolume: KubeObject, context: CallContext): Promise<string>;
  withVolumeId(
    persistentVolume: KubeObject,
    volumeId: string,
    context: CallContext,
  ): Promise<KubeObject>;
}

interface Registered<Kind extends string, Action> {
  readonly kind: Kind;
  /** `<DNS subdomain>/<name>`, unlike all others of its kind. */
  readonly name: string;
  readonly appliesTo: ResourceSelector;
  /**
   * Called once, when the action is first needed: most processes only list. `logger`: for a process
   * that serves several backups. A backup counts the warnings and errors that are logged there.
   */
  readonly open: (logger?: Logger) => Promise<Action>;
}

/**
 * An action under its name. The kinds are Velero's (pkg/plugin/framework/common/plugin_kinds.go).
 */
export type Plugin =
  | Registered<'BackupItemActionV2', BackupItemAction>
  | Registered<'RestoreItemActionV2', RestoreItemAction>
  | Registered<'DeleteItemAction', DeleteItemAction>
  | Registered<'ItemBlockAction', ItemBlockAction>;

export type PluginKind = Plugin['kind'];
