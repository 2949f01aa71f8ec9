import type { ExposeContext } from '../../exposer/index.ts';
import { keyOf } from '../../kube/index.ts';
import { type Movement, operationTimeoutMs, phaseOf } from '../movement.ts';
import type { Slots } from './slots.ts';
import type { Exposure, ExposureState, Memory } from './tracked-movements.ts';

export interface ExposuresOptions<M extends Movement> {
  readonly slots: Slots;
  /** Places for hosting pods with a fixed node; undefined if the scheduler places them. */
  readonly hosted?: Slots | undefined;
  readonly memory: Memory<M>;
  readonly enqueue: (key: string) => void;
}

/** Refusals come well before this: on a retry, finished steps take no time. */
const LIVED_MS = 60_000;

/**
 * Least number of failures in a row. Exposures do not start during an outage, so these failures are
 * answers, for example of a broken webhook.
 */
const FAILED_TIMES_MIN = 10;

/** Exposes volumes, a bounded number at once. Each waits for storage, beside the reconciler. */
export class Exposures<M extends Movement> {
  readonly #options: ExposuresOptions<M>;

  constructor(options: ExposuresOptions<M>) {
    this.#options = options;
  }

  /**
   * Takes a place for {@link start}. If all are taken, returns false and reconciles the CR again
   * once a place is free. Claimed CRs go before new ones: behind all new ones they would wait for
   * hours.
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

  /** The hosting pod is on this node until the CR ends, whichever agent claimed it. */
  host({ metadata: { uid } }: M): void {
    this.#options.hosted?.acquireAnyway(uid);
  }

  /** Reconciles the CR again once a place may be free. Lower `order` goes first. */
  park({ metadata }: M, order: number): void {
    const { slots, hosted, enqueue } = this.#options;
    const line = hosted?.hasRoom(metadata.uid) === false ? hosted : slots;
    line.wait(metadata.uid, () => enqueue(keyOf(metadata)), order);
  }

  /** Leaves the queue. Returns whether the CR was in it. */
  leave(uid: string): boolean {
    const { slots, hosted } = this.#options;
    const stood = slots.leave(uid);
    return hosted?.leave(uid) === true || stood;
  }

  /** Calls the next CR, because the called one did not take the free place. */
  callNext(): void {
    this.#options.slots.wake();
    this.#options.hosted?.wake();
  }

  /** Leaves the queue at the end of the CR, and passes a free place on to the next. */
  withdraw(uid: string): void {
    this.#options.slots.withdraw(uid);
    this.#options.hosted?.withdraw(uid);
  }

  /** This process made the claim, so it knows all objects of the CR from now on. */
  claimed({ metadata: { uid } }: M): void {
    this.#options.memory.of(uid).isBare = true;
  }

  /** Returns the places of a CR whose claim failed. */
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
    // Exposing checks whether the volume can still be moved.
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
        // The exposure had all rights and waited for something else. A later missing right counts
        // from zero.
        const hadRights = exposure.state === 'done' || performance.now() - sinceMs > LIVED_MS;
        if (hadRights) delete this.#options.memory.get(uid)?.since.refused;
        this.#count(uid, exposure.state);
        // If this exposure was dropped, another one may hold the place.
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

  /** Milliseconds since exposing first failed, if it has failed repeatedly since; otherwise 0. */
  failingMs(uid: string): number {
    const failed = this.#options.memory.get(uid)?.failed;
    return failed && failed.times >= FAILED_TIMES_MIN ? performance.now() - failed.sinceMs : 0;
  }

  /** Milliseconds since exposing succeeded after failures. No part has waited for longer. */
  madeMs(uid: string): number {
    return performance.now() - (this.#options.memory.get(uid)?.madeAtMs ?? -Infinity);
  }

  stateOf(uid: string): ExposureState | undefined {
    return this.#options.memory.get(uid)?.exposure?.state;
  }

  /** The state remains visible until the exposure has stopped. */
  abort(uid: string): void {
    this.#options.memory.get(uid)?.exposure?.abort.abort();
  }

  /** `isTakenOver`: another agent has exposed the volume meanwhile, and may have ended the CR. */
  drop(uid: string, { isTakenOver = false }: { isTakenOver?: boolean } = {}): void {
    this.abort(uid);
    const record = this.#options.memory.get(uid);
    if (record) {
      const { exposure } = record;
      if (exposure && (isTakenOver || exposure.state === 'running')) record.late = exposure.over;
      record.exposure = undefined;
      // A different agent may have created objects for the CR meanwhile.
      record.isBare = false;
    }
    this.#options.slots.release(uid);
  }
}

export const contextOf = (movement: Movement, signal: AbortSignal): ExposeContext => ({
  operationTimeoutMs: operationTimeoutMs(movement),
  signal,
});
