import { containerStatusesOf, type Pod } from '../../kube/index.ts';
import type { RestoreExecHook } from './due-hooks.ts';

/** The longest that a timer knows. */
export const TIMER_MS_MAX = 2 ** 31 - 1;

/** A pod as it was last seen, and its hooks that are not over. */
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

  /** Whoever waits for a change looks again. */
  wake(): void {
    this.#onChange?.();
  }

  /** What the watch says. A pod that leaves it may have lost its label only. */
  see(pod: Pod | undefined): void {
    this.#isWatched = pod !== undefined;
    if (pod) this.#now = pod;
    this.wake();
  }

  /** What the server says. */
  found(pod: Pod | undefined): void {
    if (this.#isWatched) return;
    this.#now = pod?.metadata.uid === this.pod.metadata.uid ? pod : 'gone';
  }

  /** Resolves with the next change, after `ms`, or when it is aborted. */
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

  /** The first container with hooks that is up, or ready where one of its hooks asks for that. */
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
