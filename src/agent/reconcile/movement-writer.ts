import { type Clock, isCode, rfc3339Seconds } from '../../base/index.ts';
import type { Cache, KubeClient } from '../../kube/index.ts';
import {
  addFinalizer,
  dropFinalizer,
  EXPOSING_LABEL,
  hasFinalizer,
  isFinal,
  isWhole,
  type Movement,
  RESTARTING,
  STOPPED,
} from '../movement.ts';
import { type Outcome, setOutcome, setVolumes } from './recorded-outcome.ts';
import type { Memory } from './tracked-movements.ts';

const ATTEMPTS_MAX = 10;
/** A single failed write is ignored. Only a longer streak counts. */
const REFUSING_MS = 15_000;

/** Reads and writes CRs. Remembers its writes, or a late watch would cause conflicts. */
export class MovementWriter<M extends Movement> {
  readonly #client: KubeClient;
  readonly #cache: Cache<M>;
  readonly #clock: Clock;
  readonly #memory: Memory<M>;
  /** Since when writes fail; milliseconds of `performance.now()`. */
  #refusingSinceMs: number | undefined;
  #refusedAtMs = -Infinity;
  #takenAtMs = -Infinity;

  constructor(client: KubeClient, cache: Cache<M>, clock: Clock, memory: Memory<M>) {
    this.#client = client;
    this.#cache = cache;
    this.#clock = clock;
    this.#memory = memory;
    cache.onChange((after) => {
      if (!after) return;
      const record = memory.get(after.metadata.uid);
      if (record?.written && !isNewer(record.written, after)) record.written = undefined;
    });
  }

  /**
   * Milliseconds since the API server accepted writes again after refusing them. While it refuses:
   * milliseconds since the last refusal, because the next write may succeed. Infinity if it always
   * accepted. A server with full storage or without quorum may still answer reads.
   */
  get takenMs(): number {
    return performance.now() - (this.isRefusing ? this.#refusedAtMs : this.#takenAtMs);
  }

  /** The last write failed. Only another write shows whether writes work again. */
  get isRefusing(): boolean {
    return this.#refusingSinceMs !== undefined;
  }

  /** A write that only tests the API server. Undefined if another client wrote in between. */
  async touch(movement: M): Promise<M | undefined> {
    const touched = await this.exclusive(movement, (copy) => {
      // The text differs each time, because a write without changes is not stored.
      const time = rfc3339Seconds(this.#clock.nowNs());
      copy.status = { ...copy.status, message: `the API server took no writes until ${time}` };
    });
    if (touched) this.#takenAtMs = performance.now();
    return touched;
  }

  current(ref: { namespace?: string; name: string }): M | undefined {
    const seen = this.#cache.get(ref);
    const own = seen && this.#memory.get(seen.metadata.uid)?.written;
    if (!own) return seen;
    return isNewer(own, seen) ? own : seen;
  }

  /** The CR as read from the API server; undefined if it is gone. */
  async latest({ metadata }: M): Promise<M | undefined> {
    const { namespace, name, uid } = metadata;
    const found = await this.#client.find(this.#cache.resource, { namespace, name });
    return found?.metadata.uid === uid ? this.#remember(found) : undefined;
  }

  /** Writes only on top of this version; undefined if it is old. Claims depend on this. */
  async exclusive(movement: M, mutate: (copy: M) => void): Promise<M | undefined> {
    const copy = structuredClone(movement);
    mutate(copy);
    return this.#tryReplace(copy);
  }

  /**
   * Writes on top of the latest version, and retries after a conflict. Undefined if `mutate`
   * returns false or the CR is gone. Tries the known version first: the server rejects an old one,
   * so a miss costs one request. `mutate` may only refuse the latest version.
   */
  async update(movement: M, mutate: (copy: M) => boolean | undefined): Promise<M | undefined> {
    const { namespace, name, uid } = movement.metadata;
    const known = await this.#updateKnown(movement, mutate);
    if (known) return known;
    for (let attempt = 1; ; attempt++) {
      const found = await this.#client.find(this.#cache.resource, { namespace, name });
      if (!found || found.metadata.uid !== uid) return undefined;
      delete found.metadata.managedFields;
      if (mutate(found) === false) return undefined;
      try {
        return this.#remember(await this.#replace(found));
      } catch (error) {
        if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
        if (!isCode(error, 'KUBE_CONFLICT') || attempt >= ATTEMPTS_MAX) throw error;
      }
    }
  }

  async #updateKnown(
    { metadata }: M,
    mutate: (copy: M) => boolean | undefined,
  ): Promise<M | undefined> {
    const known = this.current(metadata);
    if (known?.metadata.uid !== metadata.uid || !isWhole(known)) return undefined;
    const copy = structuredClone(known);
    return mutate(copy) === false ? undefined : this.#tryReplace(copy);
  }

  /** Undefined if another client wrote in between, or the CR is gone. */
  async #tryReplace(copy: M): Promise<M | undefined> {
    try {
      return this.#remember(await this.#replace(copy));
    } catch (error) {
      if (isCode(error, 'KUBE_CONFLICT', 'KUBE_NOT_FOUND')) return undefined;
      throw error;
    }
  }

  async #replace(copy: M): Promise<M> {
    try {
      const written = await this.#client.replace(this.#cache.resource, copy);
      this.#isTaken();
      return written;
    } catch (error) {
      if (!isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED')) this.#isTaken();
      else {
        this.#refusedAtMs = performance.now();
        this.#refusingSinceMs ??= this.#refusedAtMs;
      }
      throw error;
    }
  }

  #isTaken(): void {
    const sinceMs = this.#refusingSinceMs;
    if (sinceMs === undefined) return;
    const nowMs = performance.now();
    if (nowMs - sinceMs > REFUSING_MS) this.#takenAtMs = nowMs;
    this.#refusingSinceMs = undefined;
  }

  /**
   * Writes the final phase, once. Undefined if the CR was final already. `isClean`: no objects are
   * left, so the same write removes the finalizer. Not while the CR is being deleted: it would
   * vanish before anyone sees its end.
   */
  finish(movement: M, outcome: Outcome, { isClean }: { isClean: boolean }): Promise<M | undefined> {
    return this.update(movement, (copy) => {
      if (isFinal(copy)) return false;
      this.setFinal(copy, outcome);
      if (isClean && copy.metadata.deletionTimestamp === undefined) release(copy);
      return undefined;
    });
  }

  /** For a write by the caller: see {@link finish}. */
  setFinal(copy: M, { phase, status }: Outcome): void {
    const time = rfc3339Seconds(this.#clock.nowNs());
    copy.status = {
      ...copy.status,
      phase,
      startTimestamp: copy.status?.startTimestamp ?? time,
      completionTimestamp: time,
      ...status,
    };
    // Once the data is moved, a message about a dead mover is out of date.
    if (copy.status.message === '') delete copy.status.message;
    removeLabel(copy);
    setOutcome(copy, undefined);
    delete copy.metadata.annotations?.[RESTARTING];
    delete copy.metadata.annotations?.[STOPPED];
  }

  addFinalizer(movement: M): Promise<M | undefined> {
    return this.exclusive(movement, addFinalizer);
  }

  removeFinalizer(movement: M): Promise<M | undefined> {
    return this.update(movement, (copy) => {
      if (!hasFinalizer(copy)) return false;
      release(copy);
      return undefined;
    });
  }

  #remember(movement: M): M {
    delete movement.metadata.managedFields;
    const seen = this.#cache.get(movement.metadata);
    const { uid } = movement.metadata;
    if (seen?.metadata.uid === uid && isNewer(movement, seen)) {
      this.#memory.of(uid).written = movement;
    }
    return movement;
  }
}

function release(movement: Movement): void {
  dropFinalizer(movement);
  setVolumes(movement, undefined);
}

export function removeLabel({ metadata }: Movement): void {
  if (metadata.labels) delete metadata.labels[EXPOSING_LABEL];
}

/** Resource versions are numbers (Kubernetes 1.35, KEP-5504; always in etcd). */
function isNewer(a: Movement, b: Movement): boolean {
  try {
    return BigInt(a.metadata.resourceVersion) > BigInt(b.metadata.resourceVersion);
  } catch {
    return false;
  }
}
