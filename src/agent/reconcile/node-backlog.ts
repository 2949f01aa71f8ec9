import type { Cache } from '../../kube/index.ts';
import { isFinal, isServedBy, type Movement, moverNodeOf, phaseOf } from '../movement.ts';
import { exposuresOf } from '../node-agent-config.ts';
import type { Roster } from './roster.ts';

export interface BacklogOptions {
  readonly roster: Pick<Roster, 'nodes'>;
  /** Volumes that this node may move at once. Other nodes are assumed to be the same. */
  readonly concurrency: number;
  /** Values of `spec.datamover` that are served. Other data movers use other places. */
  readonly dataMovers: ReadonlySet<string>;
}

/**
 * True if no node is idle and the accepted volumes fill all queues. A node with fewer volumes than
 * it can move makes it false, even if no pods may be scheduled there. `of`: number of waiting and
 * moving volumes on a node, and how many it moves at once.
 */
export function haveEnough(
  nodes: ReadonlySet<string>,
  accepted: number,
  of: (node: string) => { readonly count: number; readonly concurrency: number },
): boolean {
  let room = 0;
  for (const node of nodes) {
    const { count, concurrency } = of(node);
    if (count < concurrency) return false;
    room += Math.max(0, exposuresOf(concurrency) - count);
  }
  return accepted >= room;
}

/**
 * Whether all nodes already have enough volumes to move. The scheduler places a pod by the number
 * of pods, not by their volumes' sizes. Placing pods late lets the last node finish sooner.
 */
export class Backlog {
  readonly #options: BacklogOptions;
  readonly #onNodes = new Map<string, number>();
  #accepted = 0;

  constructor(caches: readonly Pick<Cache<Movement>, 'onChange'>[], options: BacklogOptions) {
    this.#options = options;
    for (const cache of caches) {
      cache.onChange((after, before) => {
        this.#add(before, -1);
        this.#add(after, 1);
      });
    }
  }

  isFull(): boolean {
    const { roster, concurrency } = this.#options;
    const nodes = roster.nodes();
    return haveEnough(nodes, this.#accepted, (node) => ({
      count: this.#onNodes.get(node) ?? 0,
      concurrency,
    }));
  }

  #add(movement: Movement | undefined, change: number): void {
    if (!movement || isFinal(movement)) return;
    if (!isServedBy(this.#options.dataMovers, movement)) return;
    if (phaseOf(movement) === 'Accepted') this.#accepted += change;
    const node = moverNodeOf(movement);
    if (!node) return;
    const count = (this.#onNodes.get(node) ?? 0) + change;
    if (count === 0) this.#onNodes.delete(node);
    else this.#onNodes.set(node, count);
  }
}
