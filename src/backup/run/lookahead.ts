import { parseJsonExact } from '../../base/index.ts';
import type { Discovery, KubeObject, ServedResource } from '../../kube/index.ts';
import type { Item } from '../items/item.ts';
import type { ItemList } from '../items/item-list.ts';
import type { Spool } from '../items/spool.ts';
import type { BlockAction } from './contract.ts';
import type { Resolved } from './resolved-actions.ts';

/** Told of what will soon be needed. Neither call fails, or waits. */
export interface ReadAhead {
  /** It will be asked for by its name, to be stored. */
  object(
    resource: ServedResource,
    ref: { readonly name: string; readonly namespace?: string | undefined },
  ): void;
  /** Actions for PVCs will look at it and its volume. */
  claim(pvc: KubeObject): void;
}

export interface LookaheadOptions {
  readonly items: Pick<ItemList, 'at' | 'find' | 'isTaken' | 'length'>;
  readonly spool: Pick<Spool, 'read'>;
  readonly discovery: Pick<Discovery, 'findIn'>;
  readonly readAhead: ReadAhead;
  /** Those that relate items to PVCs take them from the lists. */
  readonly actions: readonly Resolved<BlockAction>[];
}

/**
 * PVCs that are looked at before it is their turn. Our choice: their volumes come back while one is
 * stored.
 */
const CLAIMS_AHEAD = 32;
/** Objects that did not fit into the spool, and may be large. Our choice. */
const OBJECTS_AHEAD = 8;
/** Of a PVC; a larger one is read at its turn alone. */
const CLAIM_BYTES_MAX = 64 << 10;
const PVCS_TYPE = 'persistentvolumeclaims';
const VOLUMES = { group: '', plural: 'persistentvolumes', type: 'persistentvolumes' };

/**
 * Looks at listed items before it is their turn, and tells what has to be asked for them one by
 * one: the volumes of PVCs, and items that are not in the spool. What it says is a hint: each item
 * is read at its own turn, whatever has become of it.
 */
export class Lookahead {
  readonly #options: LookaheadOptions;
  /** The first item that was not looked at. */
  #next = 0;

  constructor(options: LookaheadOptions) {
    this.#options = options;
  }

  /** `index`: whose turn it is. */
  reach(index: number): void {
    const { items } = this.#options;
    const item = items.at(index);
    if (!item) return;
    const ahead =
      item.place === undefined ? OBJECTS_AHEAD : item.type === PVCS_TYPE ? CLAIMS_AHEAD : 0;
    this.#next = Math.max(this.#next, index + 1);
    for (; ahead > 0 && this.#next <= index + ahead; this.#next++) {
      const next = items.at(this.#next);
      // Another list: its own items look further.
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
      // Whoever reads it at its turn says what is wrong.
    }
  }
}
