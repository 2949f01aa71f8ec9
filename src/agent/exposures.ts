import type { ExposeContext } from '../exposer/index.ts';
import { keyOf } from '../kube/index.ts';
import { type Movement, operationTimeoutMs, phaseOf } from './movement.ts';
import type { Slots } from './slots.ts';
import type { Exposure, ExposureState, Memory } from './tracked.ts';

export interface ExposuresOptions<M extends Movement> {
  readonly slots: Slots;
  /**
   * Pods that may stand on this node for volumes of its pods; undefined for kinds whose pods the
   * scheduler places.
   */
  readonly hosted?: Slots | undefined;
  readonly memory: Memory<M>;
  /** Looks at a CR again, soon. */
  readonly enqueue: (key: string) => void;
}

/**
 * Steps that are done already take no time when it is tried again: what is refused ends well before
 * this.
 */
const LIVED_MS = 60_000;

/**
 * While the API server is away nothing is begun: so many in a row are answers, such as those of a
 * webhook that is down.
 */
const FAILED_TIMES_MIN = 10;

/**
 * Volumes that are being made available: beside the reconciler, since each waits for storage; so
 * many at once.
 */
export class Exposures<M extends Movement> {
  readonly #options: ExposuresOptions<M>;

  constructor(options: ExposuresOptions<M>) {
    this.#options = options;
  }

  /**
   * True when there is a place for it, which {@link start} uses; else the CR is looked at again
   * once one is free. What is under way already goes on before anything is begun: behind all that
   * is new it would wait for hours.
   */
  tryAcquire(movement: M): boolean {
    const { metadata } = movement;
    const { slots, hosted } = this.#options;
    const isNew = phaseOf(movement) === 'New';
    const order = isNew ? performance.now() : -Infinity;
    const onFree = (): void => this.#options.enqueue(keyOf(metadata));
    if (isNew && hosted && !hosted.hasRoom(metadata.uid)) {
      hosted.wait(metadata.uid, onFree, order);
      return false;
    }
    if (!slots.tryAcquire(metadata.uid, onFree, order)) return false;
    if (isNew) hosted?.acquireAnyway(metadata.uid);
    return true;
  }

  hasPlace({ metadata: { uid } }: M): boolean {
    const { slots, hosted } = this.#options;
    return slots.hasRoom(uid) && hosted?.hasRoom(uid) !== false;
  }

  /** Its pod is on this node until it ends, whoever claimed it. */
  host({ metadata: { uid } }: M): void {
    this.#options.hosted?.acquireAnyway(uid);
  }

  /** Looks at it again once there may be a place for it; those of lower order come first. */
  park({ metadata }: M, order: number): void {
    const { slots, hosted, enqueue } = this.#options;
    const line = hosted?.hasRoom(metadata.uid) === false ? hosted : slots;
    line.wait(metadata.uid, () => enqueue(keyOf(metadata)), order);
  }

  /** It waits for something else, or for nothing any more; whether it stood in line. */
  leave(uid: string): boolean {
    const { slots, hosted } = this.#options;
    const stood = slots.leave(uid);
    return hosted?.leave(uid) === true || stood;
  }

  /** One that was called for a free place has not taken it. */
  callNext(): void {
    this.#options.slots.wake();
    this.#options.hosted?.wake();
  }

  /** It ends: it may be first in line for a place that is free, and others want it. */
  withdraw(uid: string): void {
    this.#options.slots.withdraw(uid);
    this.#options.hosted?.withdraw(uid);
  }

  /** This process claimed it: from here on it knows what is made for it. */
  claimed({ metadata: { uid } }: M): void {
    this.#options.memory.of(uid).isBare = true;
  }

  /** Gives the places back of one that was not claimed. */
  release(uid: string): void {
    this.#options.slots.release(uid);
    this.#options.hosted?.release(uid);
  }

  start(movement: M, task: (context: ExposeContext) => Promise<void>): void {
    const { uid } = movement.metadata;
    const over = Promise.resolve();
    const sinceMs = performance.now();
    const exposure: Exposure = { abort: new AbortController(), sinceMs, state: 'running', over };
    const record = this.#options.memory.of(uid);
    record.exposure = exposure;
    // Whether it can still be moved is looked at as part of it.
    record.lostAskedMs = sinceMs;
    const onMake = (): void => {
      const record = this.#options.memory.get(uid);
      if (record) record.isBare = false;
    };
    exposure.over = task({ ...contextOf(movement, exposure.abort.signal), onMake })
      .then(
        () => (exposure.state = 'done'),
        (error: unknown) => (exposure.state = { error }),
      )
      .then(() => {
        // It had its rights, and waited for something else: should one be missing now, that is
        // another time.
        const hadRights = exposure.state === 'done' || performance.now() - sinceMs > LIVED_MS;
        if (hadRights) delete this.#options.memory.get(uid)?.since.refused;
        this.#count(uid, exposure.state);
        // Unless it was dropped, and another one holds the place.
        const now = this.#options.memory.get(uid)?.exposure;
        if (now === exposure || now === undefined) this.#options.slots.release(uid);
        this.#options.enqueue(keyOf(movement.metadata));
      });
  }

  #count(uid: string, state: ExposureState): void {
    const record = this.#options.memory.get(uid);
    if (!record) return;
    if (state === 'done' && record.failed) record.madeAtMs = performance.now();
    const { times, sinceMs } = record.failed ?? { times: 0, sinceMs: performance.now() };
    record.failed = state === 'done' ? undefined : { times: times + 1, sinceMs };
  }

  /** Milliseconds since it failed first, when it has failed again and again since; else 0. */
  failingMs(uid: string): number {
    const failed = this.#options.memory.get(uid)?.failed;
    return failed && failed.times >= FAILED_TIMES_MIN ? performance.now() - failed.sinceMs : 0;
  }

  /**
   * Milliseconds since all of it was made, where some of it failed before: no part of it has waited
   * for longer.
   */
  madeMs(uid: string): number {
    return performance.now() - (this.#options.memory.get(uid)?.madeAtMs ?? -Infinity);
  }

  stateOf(uid: string): ExposureState | undefined {
    return this.#options.memory.get(uid)?.exposure?.state;
  }

  /** Its state stays to be seen until it has stopped. */
  abort(uid: string): void {
    this.#options.memory.get(uid)?.exposure?.abort.abort();
  }

  /** `isTakenOver`: another agent has made it available meanwhile, and may have ended it. */
  drop(uid: string, { isTakenOver = false }: { isTakenOver?: boolean } = {}): void {
    this.abort(uid);
    const record = this.#options.memory.get(uid);
    if (record) {
      const { exposure } = record;
      if (exposure && (isTakenOver || exposure.state === 'running')) record.late = exposure.over;
      record.exposure = undefined;
      // Another agent may have made something for it meanwhile.
      record.isBare = false;
    }
    this.#options.slots.release(uid);
  }
}

export const contextOf = (movement: Movement, signal: AbortSignal): ExposeContext => ({
  operationTimeoutMs: operationTimeoutMs(movement),
  signal,
});
