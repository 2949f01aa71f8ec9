import type { Cache, Pod } from '../../kube/index.ts';
import { outlineOf } from '../mover/pod-outline.ts';

/** Waits of agents of rank 0, 1, 2 for a new CR. A dead first agent costs at most 5 s. */
const TURNS_MS = [0, 3500, 4300];
const LATER_MS = 5000;
const LATER_STEP_MS = 150;

/** Nodes with a running agent, according to the agents' pods. Follows every change of the pods. */
export class Roster {
  readonly #self: string;
  /** Names of the running agents' pods, by node. */
  readonly #pods = new Map<string, Set<string>>();
  readonly #listeners: ((node: string) => void)[] = [];
  #others: { readonly node: string; readonly hash: number }[] | undefined;
  #version = 0;

  /** `pods`: the node-agents' pods of all nodes. */
  constructor(pods: Pick<Cache<Pod>, 'onChange'>, self: string) {
    this.#self = self;
    pods.onChange((after, before) => {
      const now = after && isAlive(after) ? after : undefined;
      if (before && before.spec.nodeName !== now?.spec.nodeName) this.#set(before, false);
      if (now) this.#set(now, true);
    });
  }

  /** Changes whenever a node gains or loses its agent. */
  get version(): number {
    return this.#version;
  }

  /** Called with each node that gains or loses its agent. */
  onChange(listener: (node: string) => void): void {
    this.#listeners.push(listener);
  }

  nodes(): Set<string> {
    return new Set([this.#self, ...this.#pods.keys()]);
  }

  isAlive(node: string): boolean {
    return node === this.#self || this.#pods.has(node);
  }

  /** Rank of this agent for a CR, from 0. Rendezvous hashing: agents agree without messages. */
  rank(uid: string): number {
    const of = hashOf(uid);
    const own = mixed(of ^ hashOf(this.#self));
    let rank = 0;
    for (const { node, hash } of this.#rivals()) {
      const theirs = mixed(of ^ hash);
      if (theirs > own || (theirs === own && node > this.#self)) rank++;
    }
    return rank;
  }

  /** Milliseconds that an agent of this rank waits before it tries a CR that any agent may take. */
  static turnMs(rank: number): number {
    return TURNS_MS[rank] ?? LATER_MS + (rank - TURNS_MS.length) * LATER_STEP_MS;
  }

  #rivals(): readonly { readonly node: string; readonly hash: number }[] {
    this.#others ??= [...this.#pods.keys()]
      .filter((node) => node !== this.#self)
      .map((node) => ({ node, hash: hashOf(node) }));
    return this.#others;
  }

  #set({ metadata, spec: { nodeName: node } }: Pod, isHere: boolean): void {
    if (node === undefined) return;
    const names = this.#pods.get(node) ?? new Set();
    const wasAlive = names.size > 0;
    if (isHere) names.add(metadata.name);
    else names.delete(metadata.name);
    if (names.size > 0) this.#pods.set(node, names);
    else this.#pods.delete(node);
    if (names.size > 0 === wasAlive) return;
    this.#others = undefined;
    this.#version++;
    for (const listener of this.#listeners) listener(node);
  }
}

/** FNV-1a. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return mixed(hash);
}

/** Last step of MurmurHash3: each output bit depends on all input bits. */
function mixed(word: number): number {
  let h = word;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

function isAlive({ metadata, status }: Pod): boolean {
  if (metadata.deletionTimestamp !== undefined || status?.phase !== 'Running') return false;
  const ready = status.conditions?.find(({ type }) => type === 'Ready');
  return ready === undefined || ready.status === 'True';
}

/** Fields of an agent's pod that the roster needs. Large clusters have thousands. */
export function trimmedAgent(pod: Pod): Pod {
  const { spec, status } = pod;
  const ready = status?.conditions?.find(({ type }) => type === 'Ready');
  return {
    ...outlineOf(pod),
    spec: { ...(spec.nodeName !== undefined && { nodeName: spec.nodeName }), containers: [] },
    status: {
      ...(status?.phase !== undefined && { phase: status.phase }),
      ...(ready && { conditions: [{ type: ready.type, status: ready.status }] }),
    },
  };
}
