import type { Backup, KubeObject } from '../../kube/index.ts';

/**
 * What the parts around a run of a backup have to do. Plugins, archives and journals fit these;
 * none of them is known here.
 */

export interface ResourceIdentifier {
  /** `''` for the core group. */
  readonly group: string;
  /** The plural in lower case. */
  readonly resource: string;
  readonly namespace: string;
  readonly name: string;
}

/** Which items an action is asked about. Nothing said means everything. */
export interface ActionSelector {
  readonly includedNamespaces?: readonly string[];
  readonly excludedNamespaces?: readonly string[];
  readonly includedResources?: readonly string[];
  readonly excludedResources?: readonly string[];
  /** As kubectl writes it. */
  readonly selector?: string;
}

export interface ActionContext {
  readonly signal: AbortSignal;
}

export interface ActionOutput {
  /** Undefined where it stays as it was. */
  readonly item?: KubeObject;
  readonly additionalItems?: readonly ResourceIdentifier[];
  /** `''` or nothing: no operation was started. */
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
  /** Of the item as it was before the action. */
  readonly item: ResourceIdentifier;
  readonly operationId: string;
  readonly postOperationItems: readonly ResourceIdentifier[];
}

/** A file of the backup's archive. */
export interface ArchiveFile {
  readonly path: string;
  readonly bytes: Buffer;
}

export interface FinishedItem {
  /** `apiVersion/Kind`, as in the backup's list of resources. */
  readonly kind: string;
  readonly namespace: string;
  readonly name: string;
  /**
   * Empty where it failed, and where an action took it out after another one had started an
   * operation.
   */
  readonly files: readonly ArchiveFile[];
  /** In the archive it is under this name, which an action has given it. */
  readonly storedAs?: { readonly namespace: string; readonly name: string };
  readonly operations: readonly StartedOperation[];
  /** The item is part of the list of resources all the same. */
  readonly hasFailed: boolean;
  /** A pod whose pre hooks have run, and whose post hooks must still run. */
  readonly owesPostHooks: boolean;
  /**
   * What was done about volumes on its way, for whoever continues the run; only {@link VolumeSteps}
   * reads it.
   */
  readonly facts: readonly Readonly<Record<string, unknown>>[];
  /**
   * Something was done beyond the backup, which must not be done again: a snapshot, an operation, a
   * hook.
   */
  readonly hasEffect: boolean;
}

/** What {@link VolumeSteps} did after the actions of an item. */
export interface VolumeStepResult {
  /** Operations that it began, such as backups of a pod's volumes. */
  readonly operations?: readonly StartedOperation[];
  readonly facts?: readonly Readonly<Record<string, unknown>>[];
  /** Whether any of it must not be done twice. */
  readonly hasEffect?: boolean;
  /** Of the item, which is not backed up then. What else is here counts all the same. */
  readonly errors?: readonly unknown[];
}

/**
 * Takes what is done with. Each call is one step that either has happened whole or not at all, also
 * for a process that is killed in it: whoever continues the run asks the {@link ItemJournal} that
 * was written by these calls. Calls come one at a time, but for `begun`; a call that throws ends
 * the run.
 */
export interface ItemSink {
  put(item: FinishedItem): Promise<void>;
  /**
   * An action, or what is done about volumes, has begun them. Whether their item can be put is not
   * known yet.
   */
  begun?(operations: readonly StartedOperation[]): void;
  /**
   * The first pre hook of a pod runs next: whoever comes after a kill must know that the pod may be
   * frozen.
   */
  willFreeze?(item: { kind: string; namespace: string; name: string }): Promise<void>;
  /** The post hooks of a pod have run, well or not. */
  postHooksDone(item: { kind: string; namespace: string; name: string }): Promise<void>;
  /**
   * How many hooks there have been so far, with those of earlier tries. Stored with the next item.
   */
  hooksRan?(counts: HookCounts): void;
}

/** For `status.hookStatus`. */
export interface HookCounts {
  readonly hooksAttempted: number;
  readonly hooksFailed: number;
}

/**
 * What an earlier try of the same backup has handed to its sink. `id` is `namespace/name`, or the
 * name.
 */
export interface ItemJournal {
  isDone(kind: string, id: string): boolean;
  /**
   * Whether the archive has an item of this type under this name by now, of another version, or by
   * an action that renames.
   */
  isNameTaken?(type: string, id: string): boolean;
  /** Also of a pod whose pre hooks may have run, and that is not done. */
  owesPostHooks(kind: string, id: string): boolean;
  /** All pods that this is true of: one that is not listed by now must be thawed, too. */
  owed(): Iterable<{ readonly namespace: string; readonly name: string }>;
  /**
   * Everything that is done, with its type where it is in the archive: also what the cluster no
   * longer has.
   */
  all?(): Iterable<{
    readonly kind: string;
    readonly id: string;
    readonly type: string | undefined;
  }>;
  /** Of the hooks that earlier tries have run. */
  readonly hooks?: HookCounts | undefined;
}

/**
 * What is done about volumes beside the objects that stand for them. An error that is thrown is one
 * of the item.
 */
export interface VolumeSteps {
  /** Before the actions: for a pod, which of its volumes are backed up by files. */
  before?(type: string, item: KubeObject): Promise<void>;
  /** Whether an action may run, as policies and the Backup's switches have it. */
  mayRun?(action: string, type: string, item: KubeObject): Promise<boolean>;
  /** After the actions: snapshots of a PersistentVolume, backups of a pod's volumes. */
  after?(type: string, item: KubeObject): Promise<VolumeStepResult | undefined>;
  /** Waits until the volumes of these pods have been read: post hooks run after it. */
  settled?(pods: readonly KubeObject[], signal: AbortSignal): Promise<void>;
}
