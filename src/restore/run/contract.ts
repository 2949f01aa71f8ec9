import type { ResourceIdentifier } from '../../backup/index.ts';
import type { PersistentVolume, PersistentVolumeClaim, Pod } from '../../kube/index.ts';

/** Interfaces for archives, journals and volumes. The run knows none of them. */

/** Items of one type and namespace in a backup. */
export interface ItemFolder {
  /** For example `pods` or `deployments.apps`. */
  readonly groupResource: string;
  /** Undefined for the folder without a version in its name, which has the preferred version. */
  readonly version: string | undefined;
  readonly isPreferred: boolean;
  /** `''` for cluster-scoped items. */
  readonly namespace: string;
}

export interface ItemFile extends ItemFolder {
  readonly name: string;
}

/** The items of a backup. If `load` throws, the run ends. */
export interface BackedUpItems {
  readonly isEmpty: boolean;
  directories(): Iterable<ItemFolder>;
  /** Sorted. */
  names(folder: ItemFolder): readonly string[];
  has(file: ItemFile): boolean;
  /** Undefined if the backup lacks the file. */
  load(file: ItemFile): Promise<Buffer | undefined>;
}

/** The outcome of an item, in Velero's words for the list of restored resources. */
export type RestoreOutcome = 'created' | 'updated' | 'skipped' | 'failed';

/** Identifies an item by its name in the backup. */
export interface ItemKey {
  /** `apiVersion/Kind` in the backup. */
  readonly kind: string;
  /** The target namespace; `''` for cluster-scoped items. */
  readonly namespace: string;
  readonly name: string;
}

export interface StartedRestoreOperation {
  readonly action: string;
  /** The target namespace, with the item's name in the backup. */
  readonly item: ResourceIdentifier;
  readonly operationId: string;
}

export interface DoneItem extends ItemKey {
  readonly outcome: RestoreOutcome;
  /** The object exists in the cluster, no matter who created it. Later items may need it. */
  readonly exists: boolean;
  /** The name in the cluster, if an action or a volume changed it. */
  readonly restoredAs?: string;
  /** A created claim without a data source. Only an operation or a pod can fill it. */
  readonly isBare?: boolean;
}

export interface FinishedRestoreItem extends DoneItem {
  readonly operations: readonly StartedRestoreOperation[];
}

/**
 * Records finished items. The run makes one call at a time. Each call is atomic, even if the
 * process is killed. If a call throws, the run ends.
 */
export interface RestoreSink {
  put(item: FinishedRestoreItem): Promise<void>;
  /** Records operations of an item that may take hours. The item's record repeats them. */
  begun?(operations: readonly StartedRestoreOperation[]): void;
  /** Called right before a namespace is created, because namespaces have no restore label. */
  willCreateNamespace?(name: string): Promise<void>;
}

/** The records of earlier tries of the same restore. */
export interface RestoreJournal {
  all(): Iterable<DoneItem>;
  /** Whether an earlier try was about to create the namespace. */
  wasNamespaceBegun?(name: string): boolean;
}

/** Handles PersistentVolumes and claims that name them. A thrown error fails the item. */
export interface PersistentVolumeSteps {
  /** Runs before the actions. If a volume is not restored, its claim gets a new one. */
  prepare(
    pv: PersistentVolume,
  ): Promise<
    { readonly isRestored: true; readonly item: PersistentVolume } | { readonly isRestored: false }
  >;
  /** Runs after the actions. */
  claimOf(claim: PersistentVolumeClaim): PersistentVolumeClaim;
}

/** Fills the volumes of pods. `begin` is repeatable: it finds the started operations. */
export interface PodVolumeSteps {
  /** Names of the pod's volumes whose files are in the backup. */
  filesOf?(pod: Pod, namespace: string): readonly string[];
  /** `pod`: the pod in the cluster. `namespace`: its namespace in the backup. */
  begin(
    pod: Pod,
    namespace: string,
  ): Promise<{
    readonly operations: readonly StartedRestoreOperation[];
    readonly errors: readonly unknown[];
  }>;
}
