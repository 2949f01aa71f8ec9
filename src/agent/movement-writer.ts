import { type Clock, isCode, rfc3339Seconds } from '../base/index.ts';
import type { Cache, KubeClient } from '../kube/index.ts';
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
} from './movement.ts';
import { type Outcome, setOutcome, setVolumes } from './outcome.ts';
import type { Memory } from './tracked.ts';

const ATTEMPTS_MAX = 10;
/** One write that failed beside others that did not is nothing to wait for. */
const REFUSING_MS = 15_000;

/**
 * Reads and writes CRs of one kind. What was written here is known here at once, though the watch
 * may be behind: without that, an agent would run into conflicts with itself.
 */
export class MovementWriter<M extends Movement> {
  readonly #client: KubeClient;
  readonly #cache: Cache<M>;
  readonly #clock: Clock;
  readonly #memory: Memory<M>;
  /** Since when no write has come through; milliseconds of `performance.now()`. */
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
   * Milliseconds since the API server took writes again, after it took none for a while; as long as
   * it takes none, since it refused one last: where nobody has tried for long, it may take them.
   * Infinity where it always took them. One whose storage is full, or has lost its quorum, may
   * answer all else.
   */
  get takenMs(): number {
    return performance.now() - (this.isRefusing ? this.#refusedAtMs : this.#takenAtMs);
  }

  /**
   * The last write did not come through: whether the API server takes writes by now, only another
   * one tells.
   */
  get isRefusing(): boolean {
    return this.#refusingSinceMs !== undefined;
  }

  /** Such a write, which decides nothing. Undefined when somebody else wrote in between. */
  async touch(movement: M): Promise<M | undefined> {
    const touched = await this.exclusive(movement, (copy) => {
      // Another text each time: what changes nothing is not stored.
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

  /** As the API server has it now; undefined when it is gone. */
  async latest({ metadata }: M): Promise<M | undefined> {
    const { namespace, name, uid } = metadata;
    const found = await this.#client.find(this.#cache.resource, { namespace, name });
    return found?.metadata.uid === uid ? this.#remember(found) : undefined;
  }

  /**
   * Writes on top of exactly the version given: undefined when somebody else wrote in between. The
   * claim of a CR depends on it.
   */
  async exclusive(movement: M, mutate: (copy: M) => void): Promise<M | undefined> {
    const copy = structuredClone(movement);
    mutate(copy);
    return this.#tryReplace(copy);
  }

  /**
   * Writes on top of whatever is there now, again after a conflict; undefined when `mutate` says
   * false, or it is gone. Tried first on what is known here: the server takes that only while it is
   * the latest, so that an old version costs a request and does no harm. A "no" counts only of the
   * latest.
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

  /** Undefined when somebody else wrote in between, or it is gone. */
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
   * The final phase, unless there is one: never overwritten. Undefined when it was final already.
   * `isClean`: nothing is left of what was made for it, and the finalizer goes by the same write;
   * unless it is being deleted, when its end would never be seen.
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
    // What was said of a mover that died is history once the data is moved.
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

/**
 * Resource versions of one kind can be compared as numbers (Kubernetes 1.35, KEP-5504; etcd's
 * always could).
 */
function isNewer(a: Movement, b: Movement): boolean {
  try {
    return BigInt(a.metadata.resourceVersion) > BigInt(b.metadata.resourceVersion);
  } catch {
    return false;
  }
}
