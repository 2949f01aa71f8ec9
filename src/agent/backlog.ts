import type { Cache } from '../kube/index.ts';
import { isFinal, isServedBy, type Movement, moverNodeOf, phaseOf } from './movement.ts';
import { exposuresOf } from './node-agent-config.ts';
import type { Roster } from './roster.ts';

export interface BacklogOptions {
  readonly roster: Pick<Roster, 'nodes'>;
  /** Volumes that this node may move at once; others are taken to be like it. */
  readonly concurrency: number;
  /** Values of `spec.datamover` that are served: others use other places. */
  readonly dataMovers: ReadonlySet<string>;
}

/**
 * True where no node is idle, and what is being made available (`accepted`) fills up what all of
 * them may have before them. A node that has less than it can move, and be it because nothing may
 * be placed there, is reason enough to go on. `of`: volumes that wait or are moved on a node, and
 * how many it moves at once.
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
 * Whether all nodes already have enough volumes to move. Which node a volume is moved on is settled
 * when its pod is placed, by how many there are and not by how large they are: the longer that can
 * wait, the sooner the last node is done.
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
