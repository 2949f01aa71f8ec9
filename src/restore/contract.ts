import type { ActionContext, ActionSelector, ResourceIdentifier } from '../backup/index.ts';
import type { Backup, KubeObject, Restore } from '../kube/index.ts';

export interface RestoreActionInput {
  /** The item after the earlier actions, in the namespace of the backup. */
  readonly item: KubeObject;
  /** The item in the backup, with its status. */
  readonly itemFromBackup: KubeObject;
  readonly restore: Restore;
  /** PVCs only: loads their PersistentVolume from the backup. Undefined if the backup lacks it. */
  readonly volumeFromBackup?: () => Promise<KubeObject | undefined>;
  /** The Backup when the run began. The cluster may have lost it since. */
  readonly backup?: Backup | undefined;
}

export interface RestoreActionOutput {
  /** Undefined if the action did not change the item. */
  readonly item?: KubeObject;
  /** Restored before this item. */
  readonly additionalItems?: readonly ResourceIdentifier[];
  readonly isSkipped?: boolean;
  /** `''` or undefined if no operation was started. */
  readonly operationId?: string;
  /** The item exists, and the operation restores the data of its volume. */
  readonly isInPlace?: boolean;
  /** Creates the item only after {@link RestoreAction.areAdditionalItemsReady} returns true. */
  readonly waitForAdditionalItems?: boolean;
  /** 0 or undefined: the server's resource timeout. */
  readonly additionalItemsReadyTimeoutMs?: number;
}

/** Velero's RestoreItemAction, v1 and v2. Actions must not change their input. */
export interface RestoreAction {
  readonly name: string;
  readonly appliesTo: ActionSelector;
  execute(input: RestoreActionInput, context: ActionContext): Promise<RestoreActionOutput>;
  areAdditionalItemsReady?(
    items: readonly ResourceIdentifier[],
    restore: Restore,
    context: ActionContext,
  ): Promise<boolean>;
}
