import type { ActionContext, ActionSelector, ResourceIdentifier } from '../backup/index.ts';
import type { KubeObject } from '../kube/index.ts';
import type { Restore } from './restore-object.ts';

export interface RestoreActionInput {
  /** As earlier actions left it. Namespaces are those of the backup. */
  readonly item: KubeObject;
  /** As it is in the backup, with its status. */
  readonly itemFromBackup: KubeObject;
  readonly restore: Restore;
}

export interface RestoreActionOutput {
  /** Undefined where it stays as it was. */
  readonly item?: KubeObject;
  /** What is restored before it. */
  readonly additionalItems?: readonly ResourceIdentifier[];
  /** The item is not restored. */
  readonly isSkipped?: boolean;
}

/** Velero's RestoreItemAction, as far as actions without operations go. Inputs are not changed. */
export interface RestoreAction {
  readonly name: string;
  readonly appliesTo: ActionSelector;
  execute(input: RestoreActionInput, context: ActionContext): Promise<RestoreActionOutput>;
}
