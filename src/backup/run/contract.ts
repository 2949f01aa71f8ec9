import type { Backup, KubeObject } from '../../kube/index.ts';

/** Interfaces of the parts around a backup run: plugins, archives and journals implement them. */

export interface ResourceIdentifier {
  /** `''` for the core group. */
  readonly group: string;
  /** The plural in lower case. */
  readonly resource: string;
  readonly namespace: string;
  readonly name: string;
}

/** Items that an action applies to. An empty selector means all. */
export interface ActionSelector {
  readonly includedNamespaces?: readonly string[];
  readonly excludedNamespaces?: readonly string[];
  readonly includedResources?: readonly string[];
  readonly excludedResources?: readonly string[];
  /** In kubectl's syntax. */
  readonly selector?: string;
}

export interface ActionContext {
  readonly signal: AbortSignal;
}

export interface ActionOutput {
  /** Undefined if the item is unchanged. */
  readonly item?: KubeObject;
  readonly additionalItems?: readonly ResourceIdentifier[];
  /** `''` or undefined: no operation was started. */
  readonly operationId?: string;
  readonly postOperationItems?: readonly ResourceIdentifier[];
}

/** Velero's BackupItemAction, both versions. */
export interface BackupAction {
  readonly name: string;
  readonly appliesTo: ActionSelector;
  execute(item: KubeObject, backup: Backup, context: ActionContext): Promise<ActionOutput>;
}

/** Velero's ItemBlockAction. */
export interface BlockAction {
  readonly name: string;
  readonly appliesTo: ActionSelector;
  relatedItems(
    item: KubeObject,
    backup: Backup,
    context: ActionContext,
  ): Promise<readonly ResourceIdentifier[]>;
}

export interface StartedOperation {
  readonly action: string;
  /** The item before the action changed it. */
  readonly item: ResourceIdentifier;
  readonly operationId: string;
  readonly postOperationItems: readonly ResourceIdentifier[];
}

export interface ArchiveFile {
  readonly path: string;
  readonly bytes: Buffer;
}

export interface FinishedItem {
  /** `apiVersion/Kind`, as in the resource list of the backup. */
  readonly kind: string;
  readonly namespace: string;
  readonly name: string;
  /** Empty if the item failed, or was excluded after an action started an operation. */
  readonly files: readonly ArchiveFile[];
  /** The name in the archive, if an action renamed the item. */
  readonly storedAs?: { readonly namespace: string; readonly name: string };
  readonly operations: readonly StartedOperation[];
  /** A failed item is still in the resource list. */
  readonly hasFailed: boolean;
  /** The pod's pre hooks have run, and its post hooks must still run. */
  readonly owesPostHooks: boolean;
  /** Volume steps done for the item, for a later try; only {@link VolumeSteps} reads them. */
  readonly facts: readonly Readonly<Record<string, unknown>>[];
  /** Something outside the backup must not be repeated: a snapshot, operation or hook. */
  readonly hasEffect: boolean;
}

/** Result of {@link VolumeSteps} after the actions of an item. */
export interface VolumeStepResult {
  /** Started operations, such as PodVolumeBackups. */
  readonly operations?: readonly StartedOperation[];
  readonly facts?: readonly Readonly<Record<string, unknown>>[];
  /** Whether any step must not be repeated. */
  readonly hasEffect?: boolean;
  /** Errors of the item, which is then not backed up. The other fields still count. */
  readonly errors?: readonly unknown[];
}

/**
 * Takes finished items. Each call is atomic, even if the process is killed in it: a later try reads
 * the {@link ItemJournal} that these calls wrote. Calls come one at a time, except `begun`. A call
 * that throws ends the run.
 */
export interface ItemSink {
  put(item: FinishedItem): Promise<void>;
  /** An action or a volume step has started operations. Their item may still fail to be put. */
  begun?(operations: readonly StartedOperation[]): void;
  /** The first pre hook runs next. After a kill, the pod may be frozen. */
  willFreeze?(item: { kind: string; namespace: string; name: string }): Promise<void>;
  /** The post hooks of a pod have run, successfully or not. */
  postHooksDone(item: { kind: string; namespace: string; name: string }): Promise<void>;
  /** Hook counts so far, including earlier tries. Stored with the next item. */
  hooksRan?(counts: HookCounts): void;
}

export interface HookCounts {
  readonly hooksAttempted: number;
  readonly hooksFailed: number;
}

/** Items that an earlier try put into its sink. `id` is `namespace/name`, or the name. */
export interface ItemJournal {
  isDone(kind: string, id: string): boolean;
  /** Whether the archive has an item of this type and name: another version, or renamed. */
  isNameTaken?(type: string, id: string): boolean;
  /** True also for an unfinished pod whose pre hooks may have run. */
  owesPostHooks(kind: string, id: string): boolean;
  /** All pods with due post hooks, including unlisted pods, which must be thawed too. */
  owed(): Iterable<{ readonly namespace: string; readonly name: string }>;
  /** All finished items, also deleted ones. `type` is set if the item is in the archive. */
  all?(): Iterable<{
    readonly kind: string;
    readonly id: string;
    readonly type: string | undefined;
  }>;
  /** Hook counts of earlier tries. */
  readonly hooks?: HookCounts | undefined;
}

/** Volume steps beside the objects. A thrown error is an error of the item. */
export interface VolumeSteps {
  /** Before the actions: chooses the volumes of a pod to back up by files. */
  before?(type: string, item: KubeObject): Promise<void>;
  /** Whether policies and the Backup's settings allow the action. */
  mayRun?(action: string, type: string, item: KubeObject): Promise<boolean>;
  /** After the actions: snapshots of a PersistentVolume, backups of a pod's volumes. */
  after?(type: string, item: KubeObject): Promise<VolumeStepResult | undefined>;
  /** Waits until the volumes of these pods have been read. Post hooks run afterwards. */
  settled?(pods: readonly KubeObject[], signal: AbortSignal): Promise<void>;
}
