import { parseJsonExact } from '../../base/index.ts';
import type { Discovery, KubeObject, ServedResource } from '../../kube/index.ts';
import type { Item } from '../items/item.ts';
import type { ItemList } from '../items/item-list.ts';
import type { Spool } from '../items/spool.ts';
import type { BlockAction } from './contract.ts';
import type { Resolved } from './resolved-actions.ts';

/** Prefetches objects that the run will read next. Its calls never fail or wait. */
export interface ReadAhead {
  /** The run will read the object by name to store it. */
  object(
    resource: ServedResource,
    ref: { readonly name: string; readonly namespace?: string | undefined },
  ): void;
  /** Actions for PVCs will read the PVC and its volume. */
  claim(pvc: KubeObject): void;
}

export interface LookaheadOptions {
  readonly items: Pick<ItemList, 'at' | 'find' | 'isTaken' | 'length'>;
  readonly spool: Pick<Spool, 'read'>;
  readonly discovery: Pick<Discovery, 'findIn'>;
  readonly readAhead: ReadAhead;
  /** Actions that relate listed items to PVCs use the lists instead. */
  readonly actions: readonly Resolved<BlockAction>[];
}

/** PVCs to prefetch. Our choice: their volumes arrive while another PVC is stored. */
const CLAIMS_AHEAD = 32;
/** Objects to prefetch that did not fit into the spool and may be large. Our choice. */
const OBJECTS_AHEAD = 8;
/** Larger PVCs are not prefetched. */
const CLAIM_BYTES_MAX = 64 << 10;
const PVCS_TYPE = 'persistentvolumeclaims';
const VOLUMES = { group: '', plural: 'persistentvolumes', type: 'persistentvolumes' };

/**
 * Walks ahead through the listed items and prefetches objects that need single requests: the
 * volumes of PVCs, and items outside the spool. Prefetched objects are hints: each item is read
 * again at its turn.
 */
export class Lookahead {
  readonly #options: LookaheadOptions;
  /** The first item that has not been checked. */
  #next = 0;

  constructor(options: LookaheadOptions) {
    this.#options = options;
  }

  /** `index`: the current item. */
  reach(index: number): void {
    const { items } = this.#options;
    const item = items.at(index);
    if (!item) return;
    const ahead =
      item.place === undefined ? OBJECTS_AHEAD : item.type === PVCS_TYPE ? CLAIMS_AHEAD : 0;
    this.#next = Math.max(this.#next, index + 1);
    for (; ahead > 0 && this.#next <= index + ahead; this.#next++) {
      const next = items.at(this.#next);
      // The next list starts here: its own items look ahead.
      if (next?.type !== item.type) return;
      if (!items.isTaken(next)) this.#look(next);
    }
  }

  #look(item: Item): void {
    const { readAhead } = this.#options;
    const { resource, namespace, name, place } = item;
    if (!place)
      readAhead.object(resource, { name, namespace: namespace === '' ? undefined : namespace });
    else if (item.type === PVCS_TYPE && place.length <= CLAIM_BYTES_MAX)
      void this.#lookAtClaim(place);
  }

  async #lookAtClaim(place: NonNullable<Item['place']>): Promise<void> {
    const { items, spool, discovery, readAhead, actions } = this.#options;
    try {
      const pvc = parseJsonExact(String(await spool.read(place))) as KubeObject & {
        spec?: { volumeName?: string };
        status?: { phase?: string };
      };
      const name = pvc.spec?.volumeName ?? '';
      if (name === '' || pvc.status?.phase !== 'Bound') return;
      readAhead.claim(pvc);
      const resource = discovery.findIn(VOLUMES.group, VOLUMES.plural);
      const isListed = items.find(VOLUMES.type, { namespace: '', name }).length > 0;
      const isTaken = isListed && actions.some(({ applies }) => applies(PVCS_TYPE, pvc));
      if (resource && !isTaken) readAhead.object(resource, { name });
    } catch {
      // The error appears when the item itself is read.
    }
  }
}
