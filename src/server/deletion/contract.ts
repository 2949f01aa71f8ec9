import type { ActionSelector } from '../../backup/index.ts';
import type { Logger } from '../../base/index.ts';
import type { Backup, KubeObject } from '../../kube/index.ts';
import type { RepositoryAccess } from '../../repository-access/index.ts';
import type { ActionSession } from '../backups/contract.ts';

/** What a deletion asks of others. */

/**
 * Velero's DeleteItemAction: removes what an item of a backup stands for outside of the cluster.
 * May be asked twice about one item.
 */
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
  /** Starts every plugin that has some. */
  loadDeleteActions(signal: AbortSignal): Promise<readonly DeleteAction[]>;
}

export interface DeletionSessions {
  /** Throws `PLUGIN_FOLDER`. */
  open(backup: Backup, logger: Logger): Promise<DeletionSession>;
}

/**
 * Forgets snapshots in one repository; space is freed by its maintenance. May be repeated: those
 * that are not there are `missing`. Throws `NOT_A_REPOSITORY` and `STORAGE_NOT_FOUND` where there
 * is no repository, and what the storage throws.
 */
export type ForgetSnapshots = (
  access: RepositoryAccess,
  ids: readonly string[],
  options: {
    readonly signal: AbortSignal;
    /**
     * Asked about each snapshot that is there. Refused snapshots stay, and are in no list of the
     * result.
     */
    readonly mayForget: (id: string, tags: Readonly<Record<string, string>>) => Promise<boolean>;
  },
) => Promise<{ readonly forgotten: readonly string[]; readonly missing: readonly string[] }>;
