import { createHash } from 'node:crypto';
import type { Cache, Pod } from '../kube/index.ts';

/** How long agents of rank 1, 2, ... leave a new CR to those before them; a dead first one costs no more than 5 s. */
const TURNS_MS = [0, 3500, 4300];
const LATER_MS = 5000;
const LATER_STEP_MS = 150;

/** Which nodes have a living agent, by their pods: known from the API alone. */
export class Roster {
  readonly #pods: Cache<Pod>;
  readonly #self: string;

  /** `pods`: the node-agents' pods of all nodes. */
  constructor(pods: Cache<Pod>, self: string) {
    this.#pods = pods;
    this.#self = self;
  }

  nodes(): Set<string> {
    const nodes = new Set([this.#self]);
    for (const pod of this.#pods.list()) {
      const node = pod.spec.nodeName;
      if (node !== undefined && isAlive(pod)) nodes.add(node);
    }
    return nodes;
  }

  isAlive(node: string): boolean {
    if (node === this.#self) return true;
    return this.#pods.list().some((pod) => pod.spec.nodeName === node && isAlive(pod));
  }

  /** How many agents come before this one for a CR: rendezvous hashing, so that all agree with no word spoken. */
  rank(uid: string): number {
    const own = weight(this.#self, uid);
    let rank = 0;
    for (const node of this.nodes()) if (weight(node, uid) > own) rank++;
    return rank;
  }

  /** Milliseconds that this agent waits, from when a CR is up for anyone, before it tries. */
  turnMs(uid: string): number {
    const rank = this.rank(uid);
    return TURNS_MS[rank] ?? LATER_MS + (rank - TURNS_MS.length) * LATER_STEP_MS;
  }
}

const weight = (node: string, uid: string): string =>
  createHash('sha1').update(`${node} ${uid}`).digest('hex');

function isAlive({ metadata, status }: Pod): boolean {
  if (metadata.deletionTimestamp !== undefined || status?.phase !== 'Running') return false;
  const ready = status.conditions?.find(({ type }) => type === 'Ready');
  return ready === undefined || ready.status === 'True';
}
