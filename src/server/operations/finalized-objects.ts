import { type Logger, messageOf, redactAndCut } from '../../base/index.ts';
import {
  Controller,
  type EventRecorder,
  type KubeClient,
  keyOf,
  refOf,
  type Result,
} from '../../kube/index.ts';
import { isFinalizing } from '../backups/phases.ts';
import { serverEvents } from '../server-events.ts';
import type { WatchedObjects } from '../shared-objects.ts';
import { type Followed, type FollowedKind, phaseIn } from './followed-kind.ts';

export interface FinalizedObjectsOptions<T extends Followed> {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  readonly kind: FollowedKind<T>;
  /** What few of are ended at once, such as the location of their files. */
  readonly placeOf: (object: T) => string;
  /** Ends one, or returns after how long it is to be looked at again, and what the user should know about why. Throws what is worth another try. */
  readonly finalize: (
    object: T,
  ) => Promise<{ readonly againMs: number; readonly because?: string } | undefined>;
  readonly signal: AbortSignal;
}

/** Objects ended side by side. They have nothing in common with those that run. Our choice. */
const WORKERS = 10;
/** Of one place: where it hangs, others go on. Our choice. */
const OF_PLACE_MAX = 2;
const AGAIN_MS = 1000;

/** Ends Backups or Restores whose operations are over: one time that this process leads. */
export class FinalizerQueue<T extends Followed> {
  readonly #options: FinalizedObjectsOptions<T>;
  readonly #controller: Controller;
  /** Objects of each place. */
  readonly #atWork = new Map<string, number>();
  readonly #events: EventRecorder;
  #objects: WatchedObjects<T>['cache'] | undefined;

  constructor(options: FinalizedObjectsOptions<T>) {
    const { logger, kind } = options;
    this.#options = options;
    this.#events = serverEvents(options);
    this.#controller = new Controller({
      ...{ name: `${kind.word}-finalizer`, workers: WORKERS, logger },
      reconcile: (key) => this.#reconcile(key),
    });
  }

  /** Looks at one now, whatever it waits for. */
  look(key: string): void {
    this.#controller.queue.add(key);
  }

  /** Until it is aborted. */
  async run({ cache }: WatchedObjects<T>): Promise<void> {
    this.#objects = cache;
    const working = this.#controller.run(this.#options.signal);
    cache.onChange((after) => {
      if (after && isFinalizing(phaseIn(after))) this.look(keyOf(after.metadata));
    });
    await working;
    await this.#events.flush();
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const { placeOf, finalize, signal } = this.#options;
    const object = this.#objects?.get(refOf(key));
    if (!object || !isFinalizing(phaseIn(object))) return undefined;
    const place = placeOf(object);
    const busy = this.#atWork.get(place) ?? 0;
    if (busy >= OF_PLACE_MAX) return { requeueAfterMs: AGAIN_MS };
    this.#atWork.set(place, busy + 1);
    try {
      const again = await finalize(object);
      if (again?.because !== undefined) this.#say(object, again.because);
      return again && { requeueAfterMs: again.againMs };
    } catch (error) {
      // Tried again by the controller, more and more seldom.
      if (!signal.aborted) this.#say(object, messageOf(error));
      throw error;
    } finally {
      const left = (this.#atWork.get(place) ?? 1) - 1;
      if (left > 0) this.#atWork.set(place, left);
      else this.#atWork.delete(place);
    }
  }

  /** The user can see why it is not over. */
  #say(object: T, because: string): void {
    const text = `it cannot be completed yet: ${redactAndCut(because)}`;
    this.#events.record(object, 'NotFinalized', text, 'Warning');
  }
}
