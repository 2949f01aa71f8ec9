import type { ActionSelector } from '../../backup/index.ts';
import type { Logger } from '../../base/index.ts';
import type { Backup, KubeObject } from '../../kube/index.ts';
import type { RepositoryAccess } from '../../repository-access/index.ts';
import type { ActionSession } from '../backups/contract.ts';

/** Contracts between a deletion, its plugins and the repositories. */

/** Velero's DeleteItemAction: deletes an item's data outside of the cluster. May be repeated. */
export interface DeleteAction {
  readonly name: string;
  readonly appliesTo: ActionSelector;
  execute(
    item: KubeObject,
    backup: Backup,
    context: { readonly signal: AbortSignal },
  ): Promise<void>;
}

export interface DeletionSession extends ActionSession {
  /** Starts every plugin with such actions. */
  loadDeleteActions(signal: AbortSignal): Promise<readonly DeleteAction[]>;
}

export interface DeletionSessions {
  /** Throws `PLUGIN_FOLDER`. */
  open(backup: Backup, logger: Logger): Promise<DeletionSession>;
}

/**
 * Deletes snapshots in one repository; its maintenance frees the space later. May be repeated:
 * absent snapshots are returned as `missing`. Throws `NOT_A_REPOSITORY` and `STORAGE_NOT_FOUND` if
 * there is no repository, and errors of the storage.
 */
export type ForgetSnapshots = (
  access: RepositoryAccess,
  ids: readonly string[],
  options: {
    readonly signal: AbortSignal;
    /** Called for each existing snapshot. Refused snapshots stay, and are in neither list. */
    readonly mayForget: (id: string, tags: Readonly<Record<string, string>>) => Promise<boolean>;
  },
) => Promise<{ readonly forgotten: readonly string[]; readonly missing: readonly string[] }>;
