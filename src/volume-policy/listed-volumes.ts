import {
  factsOfPod,
  factsOfPv,
  factsOfPvc,
  type PodFacts,
  type PodObject,
  type PodVolumeFacts,
  type PvcFacts,
  type PvcObject,
  type PvFacts,
  type PvObject,
} from './volume-facts.ts';
import type { VolumeUser } from './decisions.ts';
import type { VolumeLookup } from './volume-helper.ts';

/** Lists objects and keeps only the results of `take`. Without a namespace, lists all. */
export interface VolumeReads {
  pvs<T>(take: (pv: PvObject) => readonly T[]): Promise<T[]>;
  pvcs<T>(namespace: string | undefined, take: (pvc: PvcObject) => readonly T[]): Promise<T[]>;
  pods<T>(namespace: string | undefined, take: (pod: PodObject) => readonly T[]): Promise<T[]>;
}

export interface ListedVolumesOptions {
  /** The backup's namespaces. A few are listed one by one; otherwise the whole cluster. */
  readonly namespaces?: readonly string[] | undefined;
  /** Pod volumes to keep. Default: volumes of PVCs, on which other decisions depend. */
  readonly keep?: (volume: PodVolumeFacts) => boolean;
}

/** More lists than this are slower than one list of all. Our choice. */
const NAMESPACES_MAX = 10;

/**
 * The volumes of a cluster for one backup. Each resource is listed once, on first use, and only the
 * facts for policies are kept. A failed list is retried on the next use. Other namespaces are
 * listed on demand, because an action may add a pod from another namespace.
 */
export class ListedVolumes implements VolumeLookup {
  readonly #reads: VolumeReads;
  readonly #namespaces: readonly (string | undefined)[];
  readonly #keep: (volume: PodVolumeFacts) => boolean;
  readonly #lists = new Map<string, Promise<unknown>>();

  constructor(reads: VolumeReads, { namespaces = [], keep }: ListedVolumesOptions = {}) {
    const isFew = namespaces.length > 0 && namespaces.length <= NAMESPACES_MAX;
    this.#reads = reads;
    this.#namespaces = isFew ? [...new Set(namespaces)] : [undefined];
    this.#keep = keep ?? (({ claim }) => claim !== undefined);
  }

  async pv(name: string): Promise<PvFacts | undefined> {
    return (await this.pvs()).get(name);
  }

  async pvc(namespace: string, name: string): Promise<PvcFacts | undefined> {
    return (await this.#pvcsAround(namespace)).get(keyOf(namespace, name));
  }

  async usersOf(namespace: string, claim: string): Promise<readonly VolumeUser[]> {
    return (await this.#usersAround(namespace)).get(keyOf(namespace, claim)) ?? [];
  }

  /** PersistentVolumes by name. */
  pvs(): Promise<ReadonlyMap<string, PvFacts>> {
    return this.#once('pvs', async () => {
      const all = await this.#reads.pvs((pv) => [factsOfPv(pv)]);
      return new Map(all.map((pv) => [pv.name, pv]));
    });
  }

  /** PVCs by `namespace/name`. */
  pvcs(): Promise<ReadonlyMap<string, PvcFacts>> {
    return this.#once('pvcs', () => this.#pvcsIn(this.#namespaces));
  }

  #pvcsAround(namespace: string): Promise<ReadonlyMap<string, PvcFacts>> {
    if (this.#isListed(namespace)) return this.pvcs();
    return this.#once(`pvcs ${namespace}`, () => this.#pvcsIn([namespace]));
  }

  async #pvcsIn(
    namespaces: readonly (string | undefined)[],
  ): Promise<ReadonlyMap<string, PvcFacts>> {
    const all = new Map<string, PvcFacts>();
    for (const namespace of namespaces) {
      const some = await this.#reads.pvcs(namespace, (pvc) => [factsOfPvc(pvc)]);
      for (const pvc of some) all.set(keyOf(pvc.namespace, pvc.name), pvc);
    }
    return all;
  }

  /** Pods with at least one kept volume. */
  pods(): Promise<readonly PodFacts[]> {
    return this.#once('pods', () => this.#podsIn(this.#namespaces));
  }

  async #podsIn(namespaces: readonly (string | undefined)[]): Promise<readonly PodFacts[]> {
    const all: PodFacts[] = [];
    const take = (pod: PodObject): PodFacts[] => {
      const facts = factsOfPod(pod, this.#keep);
      return facts.volumes.length === 0 ? [] : [facts];
    };
    for (const namespace of namespaces) {
      for (const pod of await this.#reads.pods(namespace, take)) all.push(pod);
    }
    return all;
  }

  #usersAround(namespace: string): Promise<ReadonlyMap<string, VolumeUser[]>> {
    if (this.#isListed(namespace)) {
      return this.#once('users', async () => usersAmong(await this.pods()));
    }
    return this.#once(`users ${namespace}`, async () =>
      usersAmong(await this.#podsIn([namespace])),
    );
  }

  #isListed(namespace: string): boolean {
    return this.#namespaces.includes(undefined) || this.#namespaces.includes(namespace);
  }

  #once<T>(name: string, list: () => Promise<T>): Promise<T> {
    let known = this.#lists.get(name) as Promise<T> | undefined;
    if (!known) {
      known = list();
      this.#lists.set(name, known);
      known.catch(() => this.#lists.delete(name));
    }
    return known;
  }
}

function usersAmong(pods: readonly PodFacts[]): Map<string, VolumeUser[]> {
  const users = new Map<string, VolumeUser[]>();
  for (const { namespace, name: pod, annotations, volumes } of pods) {
    for (const { claim, name: volumeName } of volumes) {
      if (claim === undefined) continue;
      const key = keyOf(namespace, claim);
      const before = users.get(key);
      const user = { pod, annotations, volumeName };
      if (before) before.push(user);
      else users.set(key, [user]);
    }
  }
  return users;
}

export const keyOf = (namespace: string, name: string): string => `${namespace}/${name}`;
