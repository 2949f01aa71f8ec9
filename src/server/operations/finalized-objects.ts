import {
  HOUR_NS,
  isCode,
  type Logger,
  messageOf,
  monotonicOf,
  type Nanoseconds,
  redactAndCut,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import {
  Controller,
  type EventRecorder,
  isFinalizing,
  isPassingAnswer,
  keyOf,
  type KubeClient,
  refOf,
  type Result,
} from '../../kube/index.ts';
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
  /**
   * Ends one, or returns after how long it is to be looked at again, and what the user should know
   * about why. Throws what is worth another try.
   */
  readonly finalize: (
    object: T,
  ) => Promise<{ readonly againMs: number; readonly because?: string } | undefined>;
  /** Its files could not be read or written for too long: its phase alone says the end, and why. */
  readonly giveUp: (object: T, failureReason: string) => Promise<void>;
  /** How long each look may fail; less in tests. */
  readonly awayNs?: Nanoseconds | undefined;
  readonly signal: AbortSignal;
}

/** Objects ended side by side. They have nothing in common with those that run. Our choice. */
const WORKERS = 10;
/** Of one place: where it hangs, others go on. Our choice. */
const OF_PLACE_MAX = 2;
const AGAIN_MS = 1000;
/** Our choice: as long as an object waits that has operations, if nobody says another time. */
const AWAY_NS = 5n * HOUR_NS;

/** Ends Backups or Restores whose operations are over: one time that this process leads. */
export class FinalizerQueue<T extends Followed> {
  readonly #options: FinalizedObjectsOptions<T>;
  readonly #controller: Controller;
  /** Objects of each place. */
  readonly #atWork = new Map<string, number>();
  /** Since when each look at a UID has failed. After a restart the time begins anew. */
  readonly #away = new Map<string, Stopwatch>();
  readonly #events: EventRecorder;
  #objects: WatchedObjects<T>['cache'] | undefined;

  constructor(options: FinalizedObjectsOptions<T>) {
    const { logger, kind } = options;
    this.#options = options;
    this.#events = serverEvents(options);
    this.#controller = new Controller({
      name: `${kind.word}-finalizer`,
      workers: WORKERS,
      logger,
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
    cache.onChange((after, before) => {
      if (after && isFinalizing(phaseIn(after))) this.look(keyOf(after.metadata));
      else if (before) this.#away.delete(before.metadata.uid);
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
      this.#away.delete(object.metadata.uid);
      if (again?.because !== undefined) this.#say(object, again.because);
      return again && { requeueAfterMs: again.againMs };
    } catch (error) {
      if (signal.aborted) throw error;
      this.#say(object, messageOf(error));
      // Tried again by the controller, more and more seldom.
      if (!this.#isAwayForLong(object, error)) throw error;
      await this.#giveUp(object, error);
      return undefined;
    } finally {
      const left = (this.#atWork.get(place) ?? 1) - 1;
      if (left > 0) this.#atWork.set(place, left);
      else this.#atWork.delete(place);
    }
  }

  /** An API server that is away says nothing about the files: the time begins anew. */
  #isAwayForLong({ metadata: { uid } }: T, error: unknown): boolean {
    const { client, awayNs = AWAY_NS } = this.#options;
    if (isPassingAnswer(error) || isCode(error, 'LEADERSHIP_LOST')) {
      this.#away.delete(uid);
      return false;
    }
    const since = this.#away.get(uid) ?? new Stopwatch(monotonicOf(client.clock));
    this.#away.set(uid, since);
    return since.elapsedNs >= awayNs;
  }

  async #giveUp(object: T, error: unknown): Promise<void> {
    const { giveUp, kind, logger, awayNs = AWAY_NS } = this.#options;
    const seconds = awayNs / SECOND_NS;
    const because = redactAndCut(messageOf(error));
    await giveUp(object, `it could not be completed for ${seconds} s: ${because}`);
    const fields = { [kind.word]: object.metadata.name, error: because };
    logger.error(fields, `a ${kind.word} is ended without its last files`);
  }

  /** The user can see why it is not over. */
  #say(object: T, because: string): void {
    const text = `it cannot be completed yet: ${redactAndCut(because)}`;
    this.#events.record(object, 'NotFinalized', text, 'Warning');
  }
}
