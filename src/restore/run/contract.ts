import type { ResourceIdentifier } from '../../backup/index.ts';
import type { PersistentVolume, PersistentVolumeClaim, Pod } from '../../kube/index.ts';

/**
 * What the parts around a run of a restore have to do. Archives, journals and what is done about
 * volumes fit these; none of them is known here.
 */

/** Items of one type and namespace, as they lie in a backup. */
export interface ItemFolder {
  /** `pods`, `deployments.apps`. */
  readonly groupResource: string;
  /** Undefined in the folder that names none, where the preferred version is. */
  readonly version: string | undefined;
  readonly isPreferred: boolean;
  /** `''` for the cluster's own. */
  readonly namespace: string;
}

export interface ItemFile extends ItemFolder {
  readonly name: string;
}

/** The items of a backup. `load` may throw; the run ends then. */
export interface BackedUpItems {
  readonly isEmpty: boolean;
  directories(): Iterable<ItemFolder>;
  /** Sorted. */
  names(folder: ItemFolder): readonly string[];
  has(file: ItemFile): boolean;
  /** Undefined where there is none. */
  load(file: ItemFile): Promise<Buffer | undefined>;
}

/** What became of an item: Velero's words in the list of restored resources. */
export type RestoreOutcome = 'created' | 'updated' | 'skipped' | 'failed';

/** Of an item, by the name that it has in the backup. */
export interface ItemKey {
  /** `apiVersion/Kind`, as in the backup. */
  readonly kind: string;
  /** That it is restored to; `''` for the cluster's own. */
  readonly namespace: string;
  readonly name: string;
}

export interface StartedRestoreOperation {
  readonly action: string;
  /** In the namespace that it is restored to, under its name in the backup. */
  readonly item: ResourceIdentifier;
  readonly operationId: string;
}

export interface DoneItem extends ItemKey {
  readonly outcome: RestoreOutcome;
  /** The cluster has it now, whoever made it: what comes later may need it. */
  readonly exists: boolean;
  /** Under its name in the cluster, which an action or a volume may have given it. */
  readonly restoredAs?: string;
}

export interface FinishedRestoreItem extends DoneItem {
  readonly operations: readonly StartedRestoreOperation[];
}

/**
 * Takes what is done with. One call at a time; each has happened whole or not at all, also for a
 * process that is killed in it. A call that throws ends the run.
 */
export interface RestoreSink {
  put(item: FinishedRestoreItem): Promise<void>;
  /**
   * Operations of an item that is not over yet, which may take hours. They are in its record again.
   */
  begun?(operations: readonly StartedRestoreOperation[]): void;
  /**
   * Right before a namespace is made, which has no label by which whoever continues recognises it.
   */
  willCreateNamespace?(name: string): Promise<void>;
}

/** What an earlier try of the same restore has handed to its sink. */
export interface RestoreJournal {
  all(): Iterable<DoneItem>;
  /** Whether it was about to make a namespace. */
  wasNamespaceBegun?(name: string): boolean;
}

/**
 * What becomes of PersistentVolumes and of claims that name them. An error that is thrown is one of
 * the item.
 */
export interface PersistentVolumeSteps {
  /** Before the actions; what is not restored is provisioned anew for its claim. */
  prepare(
    pv: PersistentVolume,
  ): Promise<
    { readonly isRestored: true; readonly item: PersistentVolume } | { readonly isRestored: false }
  >;
  /** After the actions. */
  claimOf(claim: PersistentVolumeClaim): PersistentVolumeClaim;
}

/** What fills volumes of pods. May be asked again for a pod: it finds what it has begun. */
export interface PodVolumeSteps {
  /** Names of the volumes of a pod in the backup, if the backup has their files. */
  filesOf?(pod: Pod, namespace: string): readonly string[];
  /** Of a pod as the cluster has it now; `namespace` is the pod's in the backup. */
  begin(
    pod: Pod,
    namespace: string,
  ): Promise<{
    readonly operations: readonly StartedRestoreOperation[];
    readonly errors: readonly unknown[];
  }>;
}
