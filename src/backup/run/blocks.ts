import { isCode, messageOf, parseJsonExact } from '../../base/index.ts';
import type { Backup, Discovery, KubeClient, KubeObject } from '../../kube/index.ts';
import { typeOf } from '../filters/resources.ts';
import { idOf, type Item } from '../items/item.ts';
import type { ItemList } from '../items/item-list.ts';
import type { Spool } from '../items/spool.ts';
import type { BackupLog } from '../results.ts';
import type { BackedUp } from './backed-up-items.ts';
import type { BlockAction, ItemJournal, ResourceIdentifier } from './contract.ts';
import type { BlockItem, ItemBackupper } from './item-backupper.ts';
import { Lookahead, type ReadAhead } from './lookahead.ts';
import type { Resolved } from './resolved-actions.ts';

export interface BlockOptions {
  readonly items: ItemList;
  readonly spool: Pick<Spool, 'read'>;
  readonly client: Pick<KubeClient, 'find'>;
  readonly discovery: Pick<Discovery, 'findIn'>;
  readonly backup: Backup;
  readonly backupper: Pick<ItemBackupper, 'isIncluded' | 'isDone' | 'load'>;
  readonly actions: readonly Resolved<BlockAction>[];
  readonly backedUp: BackedUp;
  readonly journal?: ItemJournal | undefined;
  readonly readAhead?: ReadAhead | undefined;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
}

/** Items to back up together, one after another, between the hooks of their pods. */
export type ItemBlock = readonly BlockItem[];

/**
 * Builds the item blocks of a backup on demand. A block holds an item with its related items from
 * item block actions, or a run of `orderedResources`. No item is in two blocks. Velero:
 * pkg/backup/backup.go, executeItemBlockActions.
 */
export async function* itemBlocks(options: BlockOptions): AsyncGenerator<ItemBlock> {
  const { items, signal } = options;
  let block: BlockItem[] = [];
  const { readAhead } = options;
  const lookahead = readAhead && new Lookahead({ ...options, readAhead });
  for (let index = 0; index < items.length; index++) {
    signal.throwIfAborted();
    const item = items.at(index);
    if (!item) break;
    lookahead?.reach(index);
    if (!items.isTaken(item)) await new Building(options, block).addListed(items.versionsOf(item));
    const next = item.isOrdered ? items.at(index + 1) : undefined;
    const isInRow = next?.isOrdered === true && next.type === item.type;
    if (block.length > 0 && !isInRow) {
      yield block;
      block = [];
    }
  }
}

const keyOf = (type: string, item: { namespace: string; name: string }): string =>
  `${type} ${idOf(item)}`;

/** A block under construction. */
class Building {
  readonly #options: BlockOptions;
  readonly #block: BlockItem[];
  /** Unlisted items that were read from the cluster, each once per block. */
  readonly #loaded = new Set<string>();

  constructor(options: BlockOptions, block: BlockItem[]) {
    this.#options = options;
    this.#block = block;
  }

  /** Adds all versions of a listed item, with its related items. */
  async addListed(versions: readonly Item[]): Promise<void> {
    let first: BlockItem | undefined;
    for (const item of versions) {
      if (!this.#options.items.take(item)) continue;
      const isDone = this.#isDone(item);
      if (isDone && !this.#mayHaveRelated(item)) continue;
      const found = await this.#take(item, isDone);
      if (!found) continue;
      if (!isDone) this.#block.push(found);
      first ??= found;
    }
    if (first) await this.#addRelated(first);
  }

  /** Whether an earlier try stored the item, and no post hooks are due. */
  #isDone(item: Item): boolean {
    const { backupper, journal } = this.#options;
    const id = idOf(item);
    return backupper.isDone(item.kind, id) && journal?.owesPostHooks(item.kind, id) !== true;
  }

  /**
   * Whether the item may have related items. The earlier try may have ended before it stored them,
   * and they may be in no list.
   */
  #mayHaveRelated({ type }: Item): boolean {
    return this.#options.actions.some(({ takesType }) => takesType(type));
  }

  async #take(item: Item, isDone: boolean): Promise<BlockItem | undefined> {
    const { backupper, backedUp, discovery, log, signal } = this.#options;
    const { kind } = item;
    const about = { resource: item.type, namespace: item.namespace, name: item.name };
    let object: KubeObject | undefined;
    try {
      object = await this.#load(item);
    } catch (error) {
      signal.throwIfAborted();
      log.error('Error reading item', { ...about, error });
      return undefined;
    }
    if (!object) {
      if (isDone) return undefined;
      log.info('Skipping item because it was deleted meanwhile', about);
      backedUp.remove(kind, item);
      return undefined;
    }
    if (!backupper.isIncluded(item.type, object, false)) return undefined;
    const { group, plural, version } = item.resource;
    const preferredVersion = discovery.findIn(group, plural)?.version ?? version;
    return { type: item.type, object, preferredVersion };
  }

  async #load({ resource, place, namespace, name }: Item): Promise<KubeObject | undefined> {
    const { spool, client, signal } = this.#options;
    if (place) return parseJsonExact(String(await spool.read(place))) as KubeObject;
    const ref = { name, namespace: namespace === '' ? undefined : namespace };
    return await client.find(resource, ref, { signal, isExact: true });
  }

  async #addRelated(item: BlockItem): Promise<void> {
    const { actions, backup, log, signal } = this.#options;
    const { type, object } = item;
    for (const { action, applies } of actions) {
      if (!applies(type, object)) continue;
      let related: readonly ResourceIdentifier[];
      try {
        related = await action.relatedItems(object, backup, { signal });
      } catch (cause) {
        signal.throwIfAborted();
        const { namespace = '', name } = object.metadata;
        const text = `error executing ItemBlock action (groupResource=${type}, namespace=${namespace}, name=${name})`;
        log.error(`${text}: ${messageOf(cause)}`);
        continue;
      }
      for (const each of related) await this.#addOne(each);
    }
  }

  async #addOne(identifier: ResourceIdentifier): Promise<void> {
    const { backupper, items, log, signal } = this.#options;
    const { namespace, name } = identifier;
    const type = typeOf({ group: identifier.group, plural: identifier.resource });
    const key = keyOf(type, identifier);
    const listed = items.find(type, identifier);
    if (listed.length > 0) {
      await this.addListed(listed);
      return;
    }
    if (this.#loaded.has(key)) return;
    this.#loaded.add(key);
    const about = { resource: type, namespace, name };
    try {
      const [found] = await backupper.load(identifier);
      if (!found) {
        log.warn("Related item was not found in Kubernetes API, can't add to item block", about);
        return;
      }
      if (!backupper.isIncluded(type, found.object, false)) return;
      this.#block.push(found);
      await this.#addRelated(found);
    } catch (error) {
      signal.throwIfAborted();
      const what = isCode(error, 'UNKNOWN_RESOURCE')
        ? 'Unable to obtain gvr and resource for related item'
        : 'Error while trying to get related item from cluster';
      log.error(what, { ...about, error });
    }
  }
}
