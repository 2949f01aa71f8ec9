import type { ExposeContext } from '../exposer/index.ts';
import { keyOf } from '../kube/index.ts';
import { type Direction } from './directions/direction.ts';
import { type Movement, operationTimeoutMs } from './movement.ts';
import type { Slots } from './slots.ts';

export type ExposureState = 'running' | 'done' | { readonly error: unknown };

/** Volumes that are being made available: beside the reconciler, since each waits for storage; so many at once. */
export class Exposures<M extends Movement> {
  readonly #direction: Direction<M>;
  readonly #slots: Slots;
  readonly #enqueue: (key: string) => void;
  readonly #running = new Map<string, { readonly abort: AbortController; state: ExposureState }>();

  /** `enqueue`: looks at a CR again, soon. */
  constructor(direction: Direction<M>, slots: Slots, enqueue: (key: string) => void) {
    this.#direction = direction;
    this.#slots = slots;
    this.#enqueue = enqueue;
  }

  /** True when there is a place for it, which {@link start} uses; else the CR is looked at again once one is free. */
  tryAcquire({ metadata }: M): boolean {
    return this.#slots.tryAcquire(metadata.uid, () => {
      this.#enqueue(keyOf(metadata));
    });
  }

  /** Gives a place back that was not used. */
  release(uid: string): void {
    this.#slots.release(uid);
  }

  start(movement: M): void {
    const { uid } = movement.metadata;
    const abort = new AbortController();
    const exposure = { abort, state: 'running' as ExposureState };
    this.#running.set(uid, exposure);
    void this.#direction
      .expose(movement, contextOf(movement, abort.signal))
      .then(
        () => (exposure.state = 'done'),
        (error: unknown) => (exposure.state = { error }),
      )
      .then(() => {
        this.#slots.release(uid);
        this.#enqueue(keyOf(movement.metadata));
      });
  }

  stateOf(uid: string): ExposureState | undefined {
    return this.#running.get(uid)?.state;
  }

  /** Its state stays to be seen until it has stopped. */
  abort(uid: string): void {
    this.#running.get(uid)?.abort.abort();
  }

  drop(uid: string): void {
    this.abort(uid);
    this.#running.delete(uid);
    this.#slots.release(uid);
  }

  stop(): void {
    for (const { abort } of this.#running.values()) abort.abort();
  }
}

export const contextOf = (movement: Movement, signal: AbortSignal): ExposeContext => ({
  operationTimeoutMs: operationTimeoutMs(movement),
  signal,
});
