import {
  HOUR_NS,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  parseDuration,
  redactAndCut,
  rfc3339Seconds,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import {
  Controller,
  type EventRecorder,
  isPassingAnswer,
  isWaiting,
  keyOf,
  type KubeClient,
  refOf,
  type Result,
} from '../../kube/index.ts';
import { PlaceTurns } from '../place-turns.ts';
import { serverEvents } from '../server-events.ts';
import type { WatchedObjects } from '../shared-objects.ts';
import { type Run, type RunKind, phaseIn, statusIn, subjectIn } from '../runs/run-kind.ts';
import { cancelOperations } from './cancel-operations.ts';
import type { OperationGauge, OperationMetrics } from './operation-metrics.ts';
import type { OperationsStep, StepOptions } from './operations-step.ts';
import { type AskingSession, PluginProgress } from './plugin-progress.ts';

/**
 * Time limit of an action. `askedNs` is the object's own limit for all operations, as in Velero.
 */
export type TimeoutOf<T> = (action: string, object: T, askedNs: Nanoseconds) => Nanoseconds;

/** Settings that both controllers of operations share. */
export interface OperationsSettings<T extends Run> {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  /** Shared with the controller of the run, the finalizer and downloads. */
  readonly map: OperationMap;
  /** Whether a location is read-only at present. Called for each object and poll. */
  readonly isReadOnly?: (location: string, signal: AbortSignal) => Promise<boolean>;
  readonly metrics?: OperationMetrics;
  /** `--item-operation-sync-frequency`. */
  readonly syncFrequencyMs?: number;
  /** `--default-item-operation-timeout`: used if the object has no timeout. */
  readonly timeoutNs?: Nanoseconds;
  /** A location may be away for the timeout of operations plus this time; shorter in tests. */
  readonly awayNs?: Nanoseconds;
  readonly timeoutNsOf?: TimeoutOf<T>;
}

export interface FollowedOperationsOptions<T extends Run> extends OperationsSettings<T> {
  readonly kind: RunKind<T>;
  readonly open: (object: T) => Promise<AskingSession>;
  /** The location of the object's files. Throws if it cannot be read at present. */
  readonly locationOf: (object: T, signal: AbortSignal) => Promise<string>;
  readonly step: (object: T, options: StepOptions) => Promise<OperationsStep>;
  /** Whether the operations must be canceled. If undefined, another controller cancels them. */
  readonly isCanceled?: (object: T) => boolean;
  /** Called, perhaps repeatedly, if a waiting object is deleted, even without plugins. */
  readonly whenDeleted?: (object: T, asker: PluginProgress) => Promise<void>;
  /**
   * Called before an object that could not be followed is ended. Returns text to append to its
   * `failureReason`.
   */
  readonly whenGivenUp?: (object: T) => Promise<string>;
  /** Written together with the phase of such an end. */
  readonly givenUpAnnotations?: Readonly<Record<string, string | null>>;
  /** Missing things with a shorter limit than a missing location. */
  readonly absences?: FollowedAbsences<T>;
}

/** Counts, across restarts, how long something that an object needs has been absent. */
interface FollowedAbsences<T> {
  /** Whether the error reports such an absence. */
  isOne(error: unknown): boolean;
  readonly boundSeconds: bigint;
  isOver(object: T, signal: AbortSignal): Promise<boolean>;
  ended(object: T, signal: AbortSignal): Promise<unknown>;
}

/** Velero: pkg/controller/backup_operations_controller.go, defaultBackupOperationsFrequency. */
const SYNC_MS = 10_000;
/** Velero: pkg/cmd/server/config, defaultItemOperationTimeout. */
const TIMEOUT_NS = 4n * HOUR_NS;
/** Objects handled at once. Plugins that hang keep a worker busy. Our choice. */
const WORKERS = 10;
/** Objects of one location that are handled at once. Our choice. */
const AT_LOCATION = 5;
/** Our choice. */
const AWAY_NS = HOUR_NS;

/** State of a waiting object in this process. */
interface Known {
  readonly uid: string;
  readonly asker: PluginProgress;
  isReloaded: boolean;
  /** The object is canceled, and so are all its operations. */
  isTold: boolean;
  /** Since when the location cannot be used, and the last reported reason. */
  away: { readonly since: Stopwatch; said: string } | undefined;
}

/** Follows the operations of waiting objects until they end. Lives for one term as leader. */
export class FollowedOperations<T extends Run> {
  readonly #options: FollowedOperationsOptions<T>;
  readonly #objects: WatchedObjects<T>['cache'];
  readonly #signal: AbortSignal;
  readonly #assertLeading: () => void;
  readonly #controller: Controller;
  readonly #events: EventRecorder;
  #gauge: OperationGauge | undefined;
  /** Keys are `namespace/name`. */
  readonly #known = new Map<string, Known>();
  readonly #turns = new PlaceTurns(AT_LOCATION);

  constructor(
    options: FollowedOperationsOptions<T>,
    { cache }: WatchedObjects<T>,
    { signal, assertLeading }: { signal: AbortSignal; assertLeading: () => void },
  ) {
    const { logger, kind } = options;
    this.#options = options;
    this.#objects = cache;
    this.#signal = signal;
    this.#assertLeading = assertLeading;
    this.#events = serverEvents(options);
    this.#controller = new Controller({
      name: `${kind.word}-operations`,
      workers: WORKERS,
      logger,
      reconcile: (key) => this.#reconcile(key),
    });
  }

  async run(): Promise<void> {
    using gauge = this.#options.metrics?.follow();
    this.#gauge = gauge;
    const working = this.#controller.run(this.#signal);
    this.#objects.onChange((after, before) => {
      const object = after ?? before;
      if (!object) return;
      const key = keyOf(object.metadata);
      // Ended objects cost nothing here. A waiting object is queued once, and later by time.
      const waits = after !== undefined && isWaiting(phaseIn(after));
      const isNew = waits !== this.#known.has(key);
      if (waits && isNew) gauge?.expect(after.metadata.uid, this.#runningBy(after));
      else if (!waits && !this.#known.has(key)) gauge?.forget(object.metadata.uid);
      const ends = this.#ends(after) && !this.#ends(before);
      if (isNew || (waits && ends)) this.#controller.queue.add(key);
      if (!after) this.#options.map.forget(object.metadata.uid);
    });
    await working;
    for (const key of [...this.#known.keys()]) await this.#leave(key);
    await this.#events.flush();
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const object = this.#objects.get(refOf(key));
    if (this.#known.get(key)?.uid !== object?.metadata.uid) await this.#leave(key);
    if (!object || !isWaiting(phaseIn(object))) {
      await this.#leave(key);
      return undefined;
    }
    const { syncFrequencyMs = SYNC_MS, logger, kind, locationOf } = this.#options;
    const next = { requeueAfterMs: syncFrequencyMs };
    const known = this.#knownOf(key, object);
    if (isGoing(object)) {
      await this.#options.whenDeleted?.(object, known.asker);
      await this.#leave(key);
      return undefined;
    }
    try {
      const location = await locationOf(object, this.#signal);
      return await this.#turns.run(location, async () => {
        if (!(await this.#follow(object, known, location))) return next;
        await this.#leave(key);
        // The watch queues it again if its phase changes back.
        return undefined;
      });
    } catch (error) {
      if (this.#signal.aborted) throw error;
      if (isPassingAnswer(error) || isCode(error, 'LEADERSHIP_LOST')) {
        logger.debug({ [kind.word]: object.metadata.name, error: messageOf(error) }, 'asked again');
        return next;
      }
      const { absences } = this.#options;
      const isAbsence = absences?.isOne(error) === true;
      await this.#away(object, known, messageOf(error), isAbsence ? absences : undefined);
      return next;
    }
  }

  /** Returns true if the object no longer waits. */
  async #follow(object: T, known: Known, location: string): Promise<boolean> {
    if ((await this.#options.isReadOnly?.(location, this.#signal)) === true) {
      await this.#away(object, known, `backup storage location ${location} is read-only`);
      return false;
    }
    if (this.#isCanceled(object) && !known.isTold) await this.#cancel(object, known);
    const hasLeft = await this.#look(object, known);
    known.away = undefined;
    await this.#options.absences?.ended(object, this.#signal);
    return hasLeft;
  }

  /** Number of running operations according to the status. */
  #runningBy(object: T): number {
    const { attempted, completed, failed } = this.#options.kind.counts;
    const status = statusIn(object);
    const over = (status[completed] ?? 0) + (status[failed] ?? 0);
    return Math.max(0, (status[attempted] ?? 0) - over);
  }

  #isCanceled(object: T): boolean {
    return this.#options.isCanceled?.(object) === true;
  }

  /** Whether a user has deleted or canceled the object. */
  #ends(object: T | undefined): boolean {
    return object !== undefined && (isGoing(object) || this.#isCanceled(object));
  }

  /** The polls then see the operations end, and the object becomes partially failed. */
  async #cancel(object: T, known: Known): Promise<void> {
    const { map, kind, logger } = this.#options;
    const options = { asker: known.asker, signal: this.#signal };
    const untold = await cancelOperations(map, subjectIn(kind, object), options);
    known.isTold = untold === undefined;
    const fields = { [kind.word]: object.metadata.name, ...(untold !== undefined && { untold }) };
    logger.info(fields, `a ${kind.word} is canceled: its operations are told to stop`);
  }

  #knownOf(key: string, object: T): Known {
    const known = this.#known.get(key);
    if (known) return known;
    const asker = new PluginProgress(() => this.#options.open(object));
    const uid = object.metadata.uid;
    const made: Known = { uid, asker, isReloaded: false, isTold: false, away: undefined };
    this.#known.set(key, made);
    return made;
  }

  async #leave(key: string): Promise<void> {
    const known = this.#known.get(key);
    if (!known) return;
    this.#known.delete(key);
    this.#gauge?.forget(known.uid);
    await known.asker[Symbol.asyncDispose]();
  }

  /** Returns true if the object no longer waits. */
  async #look(object: T, known: Known): Promise<boolean> {
    const { map, kind, step, timeoutNsOf } = this.#options;
    const signal = this.#signal;
    if (!known.isReloaded) {
      // A different server may have led in the meantime.
      try {
        await map.reload(subjectIn(kind, object), signal);
      } catch (error) {
        // The step handles damaged files.
        if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
      }
      known.isReloaded = true;
    }
    const timeoutNs = this.#timeoutNs(object);
    const { round, hasLeft } = await step(object, {
      asker: known.asker,
      assertLeading: this.#assertLeading,
      signal,
      timeoutNsOf: (action) => timeoutNsOf?.(action, object, timeoutNs) ?? timeoutNs,
    });
    this.#gauge?.note(known.uid, round);
    return hasLeft;
  }

  #timeoutNs({ spec }: T): Nanoseconds {
    const { timeoutNs = TIMEOUT_NS } = this.#options;
    const asked = parseDuration(spec.itemOperationTimeout ?? '') ?? 0n;
    return asked > 0n ? asked : timeoutNs;
  }

  /**
   * Velero ends an object as soon as its location is missing or read-only. Here it waits for the
   * timeout of operations plus one hour, and then ends by its phase alone.
   */
  async #away(
    object: T,
    known: Known,
    text: string,
    absences?: FollowedAbsences<T>,
  ): Promise<void> {
    const { client, logger, map, kind } = this.#options;
    const { name, namespace, uid, resourceVersion } = object.metadata;
    const because = redactAndCut(text);
    known.away ??= { since: new Stopwatch(client.clock), said: '' };
    if (known.away.said !== because) {
      known.away.said = because;
      const fields = { [kind.word]: name, error: because };
      logger.warn(fields, `operations of a ${kind.word} cannot be followed`);
      const message = `its operations cannot be followed, and it waits: ${because}`;
      this.#events.record(object, 'OperationsNotFollowed', message, 'Warning');
    }
    const boundNs = this.#timeoutNs(object) + (this.#options.awayNs ?? AWAY_NS);
    const isOver = absences
      ? await absences.isOver(object, this.#signal)
      : known.away.since.elapsedNs >= boundNs;
    if (!isOver) return;
    const subject = subjectIn(kind, object);
    await map.cancel(subject, { asker: known.asker, signal: this.#signal }).catch(() => undefined);
    const more = (await this.#options.whenGivenUp?.(object)) ?? '';
    const seconds = absences?.boundSeconds ?? boundNs / SECOND_NS;
    const { givenUpAnnotations: annotations } = this.#options;
    this.#assertLeading();
    await client.patch(
      kind.resource,
      { namespace, name },
      {
        metadata: { uid, resourceVersion, ...(annotations && { annotations }) },
        status: {
          phase: 'PartiallyFailed',
          errors: (statusIn(object).errors ?? 0) + 1,
          failureReason: `its operations could not be followed for ${seconds} s: ${because}${more}`,
          completionTimestamp: rfc3339Seconds(client.clock.nowNs()),
        },
      },
      { signal: this.#signal },
    );
    map.forget(uid);
  }
}

const isGoing = (object: Run): boolean => object.metadata.deletionTimestamp !== undefined;
