import { containerStatusesOf, type Pod } from '../../kube/index.ts';
import type { RestoreExecHook } from './due-hooks.ts';

/** The longest delay of a timer. */
export const TIMER_MS_MAX = 2 ** 31 - 1;

/** The last seen state of a pod, and its unfinished hooks. */
export class PodState {
  readonly pod: Pod;
  readonly #sinceMs: number;
  #open: readonly RestoreExecHook[];
  #now: Pod | 'gone';
  #isWatched = false;
  #onChange: (() => void) | undefined;

  constructor(pod: Pod, open: readonly RestoreExecHook[], waitedMs = 0) {
    this.pod = pod;
    this.#sinceMs = performance.now() - waitedMs;
    this.#now = pod;
    this.#open = open;
  }

  get open(): readonly RestoreExecHook[] {
    return this.#open;
  }

  get now(): Pod | 'gone' {
    return this.#now;
  }

  get isWatched(): boolean {
    return this.#isWatched;
  }

  get waitedMs(): number {
    return performance.now() - this.#sinceMs;
  }

  done(hook: RestoreExecHook): void {
    this.#open = this.#open.filter((each) => each !== hook);
  }

  /** Makes a waiting {@link PodState.change} return. */
  wake(): void {
    this.#onChange?.();
  }

  /** An event of the watch. A pod that leaves the watch may only have lost its label. */
  see(pod: Pod | undefined): void {
    this.#isWatched = pod !== undefined;
    if (pod) this.#now = pod;
    this.wake();
  }

  /** The pod in an answer of the API server. */
  found(pod: Pod | undefined): void {
    if (this.#isWatched) return;
    this.#now = pod?.metadata.uid === this.pod.metadata.uid ? pod : 'gone';
  }

  /** Resolves on the next change, after `ms`, or on abort. */
  async change(ms: number, signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<undefined>();
    const wake = (): void => {
      resolve(undefined);
    };
    const timer = setTimeout(wake, Math.min(ms, TIMER_MS_MAX));
    signal.addEventListener('abort', wake, { once: true });
    this.#onChange = wake;
    if (signal.aborted) wake();
    await promise;
    this.#onChange = undefined;
    clearTimeout(timer);
    signal.removeEventListener('abort', wake);
  }

  /** The first running container with hooks. If a hook has `waitForReady`, it must be ready. */
  firstUp(pod: Pod): string | undefined {
    const statuses = containerStatusesOf(pod);
    return this.#open.find(({ container }) => {
      const own = this.#open.filter((each) => each.container === container);
      const found = statuses.find(({ name }) => name === container);
      if (own.some(({ waitForReady }) => waitForReady)) return found?.ready === true;
      return found?.state?.running !== undefined;
    })?.container;
  }
}
