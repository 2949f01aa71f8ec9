import type { BackupLog, ResourceFinder } from '../../backup/index.ts';
import { messageOf, namedFirst } from '../../base/index.ts';
import { isTransientType, type Restore, targetNamespace, UPLOADS_TYPE } from '../../kube/index.ts';
import type { BackedUpItems, ItemFile, ItemFolder } from './contract.ts';
import { readItem } from './item-file.ts';
import { orderedTypes, type RestorePriorities } from './priorities.ts';
import type { RestoreSelection } from './selection.ts';

export interface PlanOptions {
  readonly items: BackedUpItems;
  readonly restore: Restore;
  readonly priorities: RestorePriorities;
  readonly resources: ResourceFinder;
  readonly selection: RestoreSelection;
  readonly log: BackupLog;
  /** Called with the types and numbers of objects that no restore may create. */
  readonly onLeftOut?: ((type: string, count: number) => void) | undefined;
  readonly signal: AbortSignal;
}

/** Names of objects in one log line. Our choice. */
const NAMED_MAX = 50;
export const NEVER_RESTORED =
  'since Velero or Longshore made it for itself, and no restore may create it';

export interface PlannedFolder {
  readonly folder: ItemFolder;
  /** Undefined for all items. Then no names are kept in memory. */
  readonly names: readonly string[] | undefined;
  readonly count: number;
}

/**
 * Selects the items to restore and their order: types by priority, and one folder per namespace in
 * each type. `only`: one type, which is restored before the others. If labels decide and an item is
 * unreadable, the plan logs an error and continues.
 */
export async function planRestore(
  options: PlanOptions,
  which: { readonly only?: string; readonly without?: string } = {},
): Promise<PlannedFolder[]> {
  const { items, priorities, resources } = options;
  const folders = new Map<string, ItemFolder[]>();
  for (const folder of items.directories()) {
    const { groupResource: type, version } = folder;
    if (version !== undefined || type === which.without) continue;
    if (which.only !== undefined && type !== which.only) continue;
    const known = folders.get(type);
    if (known) known.push(folder);
    else folders.set(type, [folder]);
  }
  const planned: PlannedFolder[] = [];
  for (const type of orderedTypes(folders.keys(), priorities, resources)) {
    for (const folder of folders.get(type) ?? []) {
      const part = await planFolder(folder, options);
      if (part && part.count > 0) planned.push(part);
    }
  }
  return planned;
}

async function planFolder(
  folder: ItemFolder,
  { items, restore, selection, log, onLeftOut, signal }: PlanOptions,
): Promise<PlannedFolder | undefined> {
  const { groupResource: resource, namespace } = folder;
  const refusal = selection.folderRefusal(folder);
  if (refusal !== undefined) {
    log.info(refusal, { resource, namespace });
    return undefined;
  }
  const names = items.names(folder);
  if (isTransientType(resource) && resource !== UPLOADS_TYPE) {
    const named = namedFirst(names, NAMED_MAX, (name) => name);
    log.info(`left out, ${NEVER_RESTORED}: ${named}`, { resource, namespace });
    onLeftOut?.(resource, names.length);
    return undefined;
  }
  const kind = selection.asksForKind(folder) ? await kindIn(folder, names, items) : undefined;
  const left = selection.policyRefusal(folder, kind);
  if (left !== undefined) {
    log.info(left, { resource, namespace });
    return undefined;
  }
  if (!selection.looksAtItems(folder, kind)) {
    return { folder, names: undefined, count: names.length };
  }
  const taken: string[] = [];
  for (const name of names) {
    signal.throwIfAborted();
    const file: ItemFile = { ...folder, name };
    const bytes = await items.load(file);
    if (!bytes) continue;
    try {
      if (selection.takesItem(folder, readItem(file, bytes), kind)) taken.push(name);
    } catch (error) {
      log.error(messageOf(error), {
        resource,
        namespace: targetNamespace(namespace, restore),
        name,
      });
    }
  }
  return { folder, names: taken, count: taken.length };
}

/** The kind of the first readable item. All items of a folder have the same kind. */
async function kindIn(
  folder: ItemFolder,
  names: readonly string[],
  items: BackedUpItems,
): Promise<string | undefined> {
  for (const name of names) {
    const file: ItemFile = { ...folder, name };
    const bytes = await items.load(file);
    try {
      if (bytes) return readItem(file, bytes).kind;
    } catch {
      // The restore of the item reports the error.
    }
  }
  return undefined;
}
