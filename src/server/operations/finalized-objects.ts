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
import { PlaceTurns } from '../place-turns.ts';
import { serverEvents } from '../server-events.ts';
import type { WatchedObjects } from '../shared-objects.ts';
import { type Run, type RunKind, phaseIn } from '../runs/run-kind.ts';

export interface FinalizedObjectsOptions<T extends Run> {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  readonly kind: RunKind<T>;
  /** The storage location of the object. */
  readonly placeOf: (object: T) => string | Promise<string>;
  /**
   * Finalizes one object. Returns a delay and a reason for the user if it must wait. Throws errors
   * that are worth a retry.
   */
  readonly finalize: (
    object: T,
  ) => Promise<{ readonly againMs: number; readonly because?: string } | undefined>;
  /** Ends an object by its phase alone: its files were out of reach for too long. */
  readonly giveUp: (object: T, failureReason: string) => Promise<void>;
  /** How long the tries for one object may fail; shorter in tests. */
  readonly awayNs?: Nanoseconds | undefined;
  readonly signal: AbortSignal;
}

/** Objects finalized at once. Runs are not counted here. Our choice. */
const WORKERS = 10;
/** Objects finalized at once in one place. Our choice. */
const OF_PLACE_MAX = 2;
/** Our choice: the default timeout of operations plus one hour. */
const AWAY_NS = 5n * HOUR_NS;

/** Finalizes Backups or Restores whose operations have ended. Lives for one term as leader. */
export class FinalizerQueue<T extends Run> {
  readonly #options: FinalizedObjectsOptions<T>;
  readonly #controller: Controller;
  readonly #turns = new PlaceTurns(OF_PLACE_MAX);
  /** Time since the tries for a UID began to fail. Lost at a restart. */
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

  /** Tries an object now instead of at its next due time. */
  look(key: string): void {
    this.#controller.queue.add(key);
  }

  /** Runs until the signal is aborted. */
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
    const object = this.#objects?.get(refOf(key));
    if (!object || !isFinalizing(phaseIn(object))) return undefined;
    try {
      const place = await this.#options.placeOf(object);
      return await this.#turns.run(place, () => this.#finalize(object));
    } catch (error) {
      if (this.#options.signal.aborted) throw error;
      this.#say(object, messageOf(error));
      // The controller retries with back-off.
      if (!this.#isAwayForLong(object, error)) throw error;
      await this.#giveUp(object, error);
      return undefined;
    }
  }

  async #finalize(object: T): Promise<Result | undefined> {
    const again = await this.#options.finalize(object);
    this.#away.delete(object.metadata.uid);
    if (again?.because !== undefined) this.#say(object, again.because);
    return again && { requeueAfterMs: again.againMs };
  }

  /** An outage of the API server says nothing about the files, so it resets the time. */
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

  /** Records an Event, so that the user sees why the object is not finished. */
  #say(object: T, because: string): void {
    const text = `it cannot be completed yet: ${redactAndCut(because)}`;
    this.#events.record(object, 'NotFinalized', text, 'Warning');
  }
}
