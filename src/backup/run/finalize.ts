import { isCode } from '../../base/index.ts';
import type { Discovery, KubeClient, KubeObject } from '../../kube/index.ts';
import type { Backup } from '../backup-object.ts';
import { NamespaceFilter } from '../filters/namespaces.ts';
import type { BackupLog } from '../results.ts';
import { BackedUp } from './backed-up.ts';
import type { BackupAction, ResourceIdentifier } from './contract.ts';
import { ItemBackupper } from './item-backupper.ts';
import { resolveActions } from './resolved-actions.ts';

export interface FinalizeOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly discovery: Pick<Discovery, 'find' | 'findIn'>;
  readonly backup: Backup;
  /** Items that are stored anew, since their operations are over. */
  readonly items: readonly ResourceIdentifier[];
  readonly actions: readonly BackupAction[];
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** Each of these items, as the cluster has it now. */
  readonly onObject?: (object: KubeObject, item: ResourceIdentifier) => void;
}

/** Everything is taken that is asked for. */
const ALL = { takes: () => true, refuses: () => false };

/**
 * Takes items of a backup as they are now, with their actions and what these add, and without hooks. Returns the files of the archive that
 * change, by their paths. What is wrong with one item is in the log. Velero: pkg/backup/backup.go, FinalizeBackup.
 */
export async function finalizeItems(options: FinalizeOptions): Promise<Map<string, Buffer>> {
  const { discovery, items, log, signal, onObject } = options;
  const files = new Map<string, Buffer>();
  const backupper = new ItemBackupper({
    ...options,
    actions: resolveActions(options.actions, discovery),
    backedUp: new BackedUp(),
    namespaces: NamespaceFilter.of([], [], []),
    resources: ALL,
    isFinalizing: true,
    sink: {
      put: (item) => {
        for (const { path, bytes } of item.files) files.set(path, bytes);
        return Promise.resolve();
      },
      postHooksDone: () => Promise.resolve(),
    },
  });
  for (const item of items) {
    signal.throwIfAborted();
    const { namespace, name, resource: plural, group } = item;
    const about = { resource: group === '' ? plural : `${plural}.${group}`, namespace, name };
    try {
      const found = await backupper.load(item);
      if (found.length === 0) {
        // As contents of snapshots, which go while they are looked at.
        log.info('An item that was to be stored again is not there any more', about);
      }
      for (const each of found) {
        onObject?.(each.object, item);
        await backupper.backUp(each, [], { mustInclude: true });
      }
    } catch (error) {
      signal.throwIfAborted();
      // Somebody may be able to answer soon: the whole is tried again then.
      if (isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED')) throw error;
      log.error('Error getting an item that is to be stored again', { ...about, error });
    }
  }
  return files;
}
