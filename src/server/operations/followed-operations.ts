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
import { serverEvents } from '../server-events.ts';
import type { WatchedObjects } from '../shared-objects.ts';
import { type Followed, type FollowedKind, phaseIn, statusIn, subjectIn } from './followed-kind.ts';
import { cancelOperations } from './cancel.ts';
import type { OperationGauge, OperationMetrics } from './operation-metrics.ts';
import type { OperationsStep, StepOptions } from './operations-step.ts';
import { type AskingSession, SessionAsker } from './session-asker.ts';

/**
 * How long an operation of an action may take. `askedNs`: what the Backup or Restore says of all
 * operations. Velero has only that.
 */
export type TimeoutOf<T> = (action: string, object: T, askedNs: Nanoseconds) => Nanoseconds;

/** What both controllers of operations may be told. */
export interface OperationsSettings<T extends Followed> {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  /** The one that the controller of the run, the finalizer and downloads use. */
  readonly map: OperationMap;
  /** Whether nothing may be written to a location at present. Asked for each object and poll. */
  readonly isReadOnly?: (location: string, signal: AbortSignal) => Promise<boolean>;
  readonly metrics?: OperationMetrics;
  /** `--item-operation-sync-frequency`. */
  readonly syncFrequencyMs?: number;
  /** `--default-item-operation-timeout`, for objects that do not say. */
  readonly timeoutNs?: Nanoseconds;
  /** How much longer than operations may take a location may be away; less in tests. */
  readonly awayNs?: Nanoseconds;
  readonly timeoutNsOf?: TimeoutOf<T>;
}

export interface FollowedOperationsOptions<T extends Followed> extends OperationsSettings<T> {
  readonly kind: FollowedKind<T>;
  readonly open: (object: T) => Promise<AskingSession>;
  /** Of its files. Throws where it cannot be known at present. */
  readonly locationOf: (object: T, signal: AbortSignal) => Promise<string>;
  readonly step: (object: T, options: StepOptions) => Promise<OperationsStep>;
  /**
   * Whether its operations are to be told to stop. Where nobody says so here, another controller
   * does it.
   */
  readonly isCanceled?: (object: T) => boolean;
  /**
   * One that is deleted while it waits; may be called again, and also when nobody can be told any
   * more.
   */
  readonly whenDeleted?: (object: T, asker: SessionAsker) => Promise<void>;
  /**
   * One that is ended because it could not be followed for too long, before its phase says so.
   * Returns what else its `failureReason` is to say.
   */
  readonly whenGivenUp?: (object: T) => Promise<string>;
  /** Written with the end of such a one. */
  readonly givenUpAnnotations?: Readonly<Record<string, string | null>>;
  /** What may keep an object from being followed for less time than a location that is away. */
  readonly absences?: FollowedAbsences<T>;
}

/** Counts across restarts how long something has been absent that an object needs. */
interface FollowedAbsences<T> {
  /** Whether it is that what was thrown tells of. */
  isOne(error: unknown): boolean;
  readonly boundSeconds: bigint;
  isOver(object: T, signal: AbortSignal): Promise<boolean>;
  ended(object: T, signal: AbortSignal): Promise<unknown>;
}

/** Velero: pkg/controller/backup_operations_controller.go, defaultBackupOperationsFrequency. */
const SYNC_MS = 10_000;
/** Velero: pkg/cmd/server/config, defaultItemOperationTimeout. */
const TIMEOUT_NS = 4n * HOUR_NS;
/** Objects looked at side by side: one with plugins that hang keeps one. Our choice. */
const WORKERS = 10;
/** Our choice. */
const AWAY_NS = HOUR_NS;

/** What this process knows of an object that waits. */
interface Known {
  readonly uid: string;
  readonly asker: SessionAsker;
  isReloaded: boolean;
  /** Its operations have all been told to stop, since somebody has canceled it. */
  isTold: boolean;
  /** Since when its location is of no use, and what was said of it. */
  away: { readonly since: Stopwatch; said: string } | undefined;
}

/**
 * Follows the operations of Backups or Restores that wait for them, until each is over: one time
 * that this process leads.
 */
export class FollowedOperations<T extends Followed> {
  readonly #options: FollowedOperationsOptions<T>;
  readonly #objects: WatchedObjects<T>['cache'];
  readonly #signal: AbortSignal;
  readonly #assertLeading: () => void;
  readonly #controller: Controller;
  readonly #events: EventRecorder;
  #gauge: OperationGauge | undefined;
  /** By key. */
  readonly #known = new Map<string, Known>();

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
      // Those that are over cost nothing; one that waits is looked at when it begins to, and then
      // by time.
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
      if ((await this.#options.isReadOnly?.(location, this.#signal)) === true) {
        await this.#away(object, known, `backup storage location ${location} is read-only`);
        return next;
      }
      if (this.#isCanceled(object) && !known.isTold) await this.#cancel(object, known);
      const hasLeft = await this.#look(object, known);
      known.away = undefined;
      await this.#options.absences?.ended(object, this.#signal);
      if (!hasLeft) return next;
      await this.#leave(key);
      // Looked at again only where the watch brings another phase.
      return undefined;
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

  /** How many operations go on, as the object counts them. */
  #runningBy(object: T): number {
    const { attempted, completed, failed } = this.#options.kind.counts;
    const status = statusIn(object);
    const over = (status[completed] ?? 0) + (status[failed] ?? 0);
    return Math.max(0, (status[attempted] ?? 0) - over);
  }

  #isCanceled(object: T): boolean {
    return this.#options.isCanceled?.(object) === true;
  }

  /** Somebody has deleted or canceled it. */
  #ends(object: T | undefined): boolean {
    return object !== undefined && (isGoing(object) || this.#isCanceled(object));
  }

  /** What becomes of its operations is seen as always: they end, and it is partially failed. */
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
    const asker = new SessionAsker(() => this.#options.open(object));
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

  /** Whether it waits no more. */
  async #look(object: T, known: Known): Promise<boolean> {
    const { map, kind, step, timeoutNsOf } = this.#options;
    const signal = this.#signal;
    if (!known.isReloaded) {
      // Another server may have led since this one last did.
      try {
        await map.reload(subjectIn(kind, object), signal);
      } catch (error) {
        // The step decides what a damaged file means.
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
   * Velero ends what has a location that is missing or read-only for a moment; here its operations
   * go on, and it is looked at again. After the time that operations may take, and an hour, nobody
   * would wait any more: then it ends by itself alone.
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

const isGoing = (object: Followed): boolean => object.metadata.deletionTimestamp !== undefined;
