import type { ActionContext, ActionSelector, ResourceIdentifier } from '../backup/index.ts';
import type { Backup, KubeObject, Restore } from '../kube/index.ts';

export interface RestoreActionInput {
  /** As earlier actions left it. Namespaces are those of the backup. */
  readonly item: KubeObject;
  /** As it is in the backup, with its status. */
  readonly itemFromBackup: KubeObject;
  readonly restore: Restore;
  /**
   * Of a PVC: the PersistentVolume that it had, as it is in the backup; undefined where the backup
   * does not have it.
   */
  readonly volumeFromBackup?: () => Promise<KubeObject | undefined>;
  /** The Backup, as the run of the restore found it. The cluster may have lost it since. */
  readonly backup?: Backup | undefined;
}

export interface RestoreActionOutput {
  /** Undefined where it stays as it was. */
  readonly item?: KubeObject;
  /** What is restored before it. */
  readonly additionalItems?: readonly ResourceIdentifier[];
  /** The item is not restored. */
  readonly isSkipped?: boolean;
  /** `''` or nothing: no operation was started. */
  readonly operationId?: string;
  /** The item is there already, and its volume is brought back by the operation. */
  readonly isInPlace?: boolean;
  /** The item is made once {@link RestoreAction.areAdditionalItemsReady} says so. */
  readonly waitForAdditionalItems?: boolean;
  /** 0 or nothing: as long as the server waits for resources. */
  readonly additionalItemsReadyTimeoutMs?: number;
}

/** Velero's RestoreItemAction, both versions. Inputs are not changed. */
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
