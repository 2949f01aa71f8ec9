import {
  assert,
  type Clock,
  goJson,
  type Logger,
  mapLimited,
  messageOf,
  monotonicOf,
  type Nanoseconds,
  parseGoTime,
  SECOND_NS,
  silentLogger,
  Stopwatch,
  systemClock,
  untilAborted,
} from '../base/index.ts';
import { merged } from './merge-operations.ts';
import {
  countsOf,
  isAnyRunning,
  type Observation,
  observed,
  type OperationCounts,
} from './operation-progress.ts';
import {
  actionOf,
  type BegunOperation,
  isRunning,
  keyOf,
  newOperation,
  type Operation,
  type Subject,
  subjectUidOf,
} from './operation.ts';

/** The operations file of a backup or restore. */
export interface OperationStore {
  /** Returns `[]` if there is no file. Throws the bucket's errors, and `DAMAGED_ARCHIVE`. */
  load(subject: Subject, signal?: AbortSignal): Promise<readonly Operation[]>;
  save(subject: Subject, operations: readonly Operation[], signal?: AbortSignal): Promise<void>;
}

/** Reaches the plugins. */
export interface OperationAsker {
  /** Throws only if its own signal is canceled. */
  ask(operation: Operation, signal: AbortSignal): Promise<Observation>;
  cancel(operation: Operation, signal: AbortSignal): Promise<void>;
}

export interface PollOptions {
  readonly asker: OperationAsker;
  /** Time limit of an operation, from its start; 0 means no limit. */
  readonly timeoutNsOf: (operation: Operation) => Nanoseconds;
  readonly signal: AbortSignal;
}

/** Result of one poll of all running operations. */
export interface Round extends OperationCounts {
  readonly operations: readonly Operation[];
  readonly isAnyRunning: boolean;
  /** Operations that ended in this round. */
  readonly ended: readonly Operation[];
}

export interface OperationMapOptions {
  readonly store: OperationStore;
  readonly clock?: Clock;
  readonly logger?: Logger;
}

/** Questions to plugins at once: plugins answer from the API server. Our choice. */
const ASKED_AT_ONCE = 16;
/** Delay after a failed question, doubling. Our choice: one poll interval, up to a minute. */
const UNASKED_DELAY_NS = 10n * SECOND_NS;
const UNASKED_DELAY_NS_MAX = 60n * SECOND_NS;

/** An operation with facts that only this process knows. */
interface Tracked {
  operation: Operation;
  /** Time since the operation became known here, and its age at that moment. */
  readonly watch: Stopwatch;
  readonly ageNs: Nanoseconds;
  unasked:
    | { readonly since: Stopwatch; times: number; delayNs: Nanoseconds; nextNs: Nanoseconds }
    | undefined;
}

interface Entry {
  readonly tracked: Map<string, Tracked>;
  /** `changes` counts all changes. `stored` is the count at the last store. */
  changes: number;
  stored: number;
  /** The last change that must be stored without a request: any change except progress. */
  needed: number;
  /** Ended operations that no round has reported yet, because the round failed. */
  ended: Operation[];
  /** The running store, or the last one. */
  saving: Promise<void>;
  round: Promise<Round> | undefined;
}

/** A file read that several callers share. */
interface Loading {
  readonly entry: Promise<Entry>;
  readonly abort: AbortController;
  waiting: number;
}

/**
 * Operations of backups and restores in memory, by UID: a deleted and recreated backup has other
 * operations. The file holds the start, phase and error of an operation before any caller learns
 * them. Progress alone is stored on request.
 */
export class OperationMap {
  readonly #store: OperationStore;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #entries = new Map<string, Entry>();
  readonly #loading = new Map<string, Loading>();

  constructor({ store, clock = systemClock, logger = silentLogger }: OperationMapOptions) {
    this.#store = store;
    this.#clock = clock;
    this.#logger = logger;
  }

  /** Starts with no operations: stored operations of an older backup of this name are ignored. */
  begin(subject: Subject): void {
    assert(!this.#entries.has(subject.uid), 'operations of what begins only now');
    this.#entries.set(subject.uid, newEntry());
  }

  /**
   * Records and stores a started operation, so that its plugin can be told to cancel after a
   * restart. Operations recorded together share the next store. Throws the store's errors; the
   * operation then stays in memory and is in the next store.
   */
  async record(subject: Subject, begun: BegunOperation, signal?: AbortSignal): Promise<Operation> {
    const entry = await this.#entry(subject, signal);
    const operation = newOperation(subject, begun, this.#clock.nowNs());
    // An action that ran twice for an item began one operation.
    if (!entry.tracked.has(keyOf(operation))) {
      entry.tracked.set(keyOf(operation), this.#track(operation));
      entry.needed = ++entry.changes;
    }
    await this.#save(subject, entry, { upTo: entry.needed, signal });
    return operation;
  }

  /**
   * Takes over a backup that begins here, or that another server began. Its journal holds the
   * operations; nothing is stored until the first poll.
   */
  takeOver(subject: Subject, begun: readonly BegunOperation[]): void {
    if (!this.#entries.has(subject.uid)) this.#entries.set(subject.uid, newEntry());
    this.note(subject, begun);
  }

  /** Adds operations from the backup's journal. The next poll stores them. */
  note(subject: Subject, begun: readonly BegunOperation[]): void {
    const entry = this.#entries.get(subject.uid);
    assert(entry, 'operations of what was taken over');
    for (const each of begun) {
      const operation = newOperation(subject, each, this.#clock.nowNs());
      if (entry.tracked.has(keyOf(operation))) continue;
      entry.tracked.set(keyOf(operation), this.#track(operation));
      entry.needed = ++entry.changes;
    }
  }

  /** Returns all operations. Throws the store's errors. */
  async get(subject: Subject, signal?: AbortSignal): Promise<readonly Operation[]> {
    return operationsOf(await this.#entry(subject, signal));
  }

  /**
   * Asks once about each running operation and stores the changes before it returns. The file is
   * thus never behind the phase that the caller writes next. A second call during a round shares
   * it. Throws the store's errors; nothing is lost then.
   */
  async poll(subject: Subject, options: PollOptions): Promise<Round> {
    const entry = await this.#entry(subject, options.signal);
    entry.round ??= this.#round(subject, entry, options).finally(() => (entry.round = undefined));
    return entry.round;
  }

  async #round(subject: Subject, entry: Entry, options: PollOptions): Promise<Round> {
    const running = [...entry.tracked.values()].filter(
      ({ operation, unasked }) =>
        isRunning(operation) && (!unasked || unasked.since.elapsedNs >= unasked.nextNs),
    );
    await mapLimited(running, ASKED_AT_ONCE, async (tracked) => {
      const before = tracked.operation;
      await this.#observe(tracked, options);
      if (goJson(tracked.operation.status) === goJson(before.status)) return;
      entry.changes++;
      if (tracked.operation.status.phase === before.status.phase) return;
      entry.needed = entry.changes;
      if (!isRunning(tracked.operation)) entry.ended.push(tracked.operation);
    });
    await this.#save(subject, entry, { upTo: entry.needed, signal: options.signal });
    const ended = entry.ended.splice(0);
    const operations = operationsOf(entry);
    return { ...countsOf(operations), operations, isAnyRunning: isAnyRunning(operations), ended };
  }

  async #observe(tracked: Tracked, { asker, timeoutNsOf, signal }: PollOptions): Promise<void> {
    signal.throwIfAborted();
    const { operation, watch, ageNs } = tracked;
    const observation = await asker.ask(operation, signal);
    this.#noteUnasked(tracked, observation);
    const result = observed(operation, observation, {
      unaskedForNs: tracked.unasked?.since.elapsedNs,
      unaskedTimes: tracked.unasked?.times ?? 0,
      // A time-out of 0 means no limit.
      isOverdue: timeoutNsOf(operation) > 0n && ageNs + watch.elapsedNs > timeoutNsOf(operation),
    });
    if (result.mustCancel) {
      // Cancel before storing the end. After a kill in between, the next process cancels again.
      await asker.cancel(operation, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        const { operationID } = operation.spec;
        const fields = { action: actionOf(operation), operationID, error: messageOf(error) };
        this.#logger.warn(fields, 'an operation that timed out could not be canceled');
      });
    }
    // A final phase from another server may have been loaded meanwhile; it stays.
    const [further = result.operation] = merged([tracked.operation], [result.operation]);
    tracked.operation = tracked.operation === operation ? result.operation : further;
  }

  #noteUnasked(tracked: Tracked, observation: Observation): void {
    if (observation.kind === 'progress') {
      tracked.unasked = undefined;
      return;
    }
    if (!tracked.unasked) {
      const since = new Stopwatch(monotonicOf(this.#clock));
      const delays = { delayNs: UNASKED_DELAY_NS, nextNs: UNASKED_DELAY_NS };
      tracked.unasked = { since, times: 1, ...delays };
      return;
    }
    tracked.unasked.times++;
    const delayNs = tracked.unasked.delayNs * 2n;
    tracked.unasked.delayNs = delayNs > UNASKED_DELAY_NS_MAX ? UNASKED_DELAY_NS_MAX : delayNs;
    tracked.unasked.nextNs = tracked.unasked.since.elapsedNs + tracked.unasked.delayNs;
  }

  /**
   * Tells every running operation of a failed or deleted backup to cancel; a poll finds the
   * results. Returns the operations that could not be told, with the reason.
   */
  async cancel(
    subject: Subject,
    { asker, signal }: Pick<PollOptions, 'asker' | 'signal'>,
  ): Promise<{ readonly operation: Operation; readonly error: string }[]> {
    const running = (await this.get(subject, signal)).filter(isRunning);
    const failures: { operation: Operation; error: string }[] = [];
    await mapLimited(running, ASKED_AT_ONCE, async (operation) => {
      signal.throwIfAborted();
      try {
        await asker.cancel(operation, signal);
      } catch (error) {
        signal.throwIfAborted();
        failures.push({ operation, error: messageOf(error) });
      }
    });
    return failures;
  }

  /**
   * Stores changes that the bucket does not have yet, so that a download shows them. Reads nothing
   * if no operation is known here.
   */
  async flush(subject: Subject, signal?: AbortSignal): Promise<void> {
    const entry = this.#entries.get(subject.uid);
    if (entry) await this.#save(subject, entry, { upTo: entry.changes, signal });
  }

  /** Stores the final state and forgets the operations. If the store fails, they are kept. */
  async finish(subject: Subject, signal?: AbortSignal): Promise<void> {
    const entry = this.#entries.get(subject.uid);
    if (!entry) return;
    await this.flush(subject, signal);
    this.forget(subject.uid);
  }

  forget(uid: string): void {
    this.#entries.delete(uid);
  }

  /**
   * Reads the file again, because another server may have changed it. Merges the file with the
   * changes that are not stored yet.
   */
  async reload(subject: Subject, signal?: AbortSignal): Promise<void> {
    const known = this.#entries.get(subject.uid);
    if (!known) return;
    const stored = await this.#load(subject, signal);
    for (const operation of merged(stored, operationsOf(known))) {
      const tracked = known.tracked.get(keyOf(operation));
      if (tracked) tracked.operation = operation;
      else known.tracked.set(keyOf(operation), this.#track(operation));
    }
    known.needed = ++known.changes;
  }

  async #entry(subject: Subject, signal?: AbortSignal): Promise<Entry> {
    const known = this.#entries.get(subject.uid);
    if (known) return known;
    // A read with a location may find a file that a read without one does not.
    const key = `${subject.uid} ${subject.location ?? ''}`;
    let loading = this.#loading.get(key);
    if (!loading) {
      const abort = new AbortController();
      const entry = this.#loaded(subject, abort.signal);
      const begun: Loading = { entry, abort, waiting: 0 };
      const forget = (): void => {
        if (this.#loading.get(key) === begun) this.#loading.delete(key);
      };
      entry.then(forget, forget);
      this.#loading.set(key, (loading = begun));
    }
    // A caller may leave without ending the load for others; the last caller to leave ends it.
    loading.waiting++;
    try {
      if (signal) await untilAborted(signal, loading.entry);
      signal?.throwIfAborted();
      return await loading.entry;
    } finally {
      if (--loading.waiting === 0) {
        loading.abort.abort(signal?.reason);
        if (this.#loading.get(key) === loading) this.#loading.delete(key);
      }
    }
  }

  async #loaded(subject: Subject, signal: AbortSignal | undefined): Promise<Entry> {
    const entry = newEntry();
    for (const operation of await this.#load(subject, signal)) {
      entry.tracked.set(keyOf(operation), this.#track(operation));
    }
    // All callers have left, and a newer read may be in the map.
    signal?.throwIfAborted();
    const known = this.#entries.get(subject.uid);
    if (known) return known;
    this.#entries.set(subject.uid, entry);
    return entry;
  }

  /** Drops operations of an older backup with the same name. */
  async #load(subject: Subject, signal: AbortSignal | undefined): Promise<readonly Operation[]> {
    const stored = await this.#store.load(subject, signal);
    return stored.filter((operation) => ['', subject.uid].includes(subjectUidOf(operation)));
  }

  /** Reads the wall clock once: later clock changes do not affect the time-out. */
  #track(operation: Operation): Tracked {
    const ageNs = ageOf(operation, this.#clock.nowNs());
    const watch = new Stopwatch(monotonicOf(this.#clock));
    return { operation, watch, ageNs, unasked: undefined };
  }

  /** Runs one store at a time; callers that wait share the next store. */
  async #save(
    subject: Subject,
    entry: Entry,
    { upTo, signal }: { readonly upTo: number; readonly signal: AbortSignal | undefined },
  ): Promise<void> {
    while (entry.stored < upTo) {
      const before = entry.saving;
      await before.catch(() => undefined);
      // A different waiter has begun a store, which may include these changes.
      if (entry.stored >= upTo || entry.saving !== before) continue;
      const { changes } = entry;
      entry.saving = this.#store.save(subject, operationsOf(entry), signal).then(() => {
        entry.stored = changes;
      });
      await entry.saving;
    }
  }
}

/** Returns 0 if `created` is missing or in the future. */
function ageOf({ status: { created } }: Operation, nowNs: Nanoseconds): Nanoseconds {
  try {
    const ageNs = typeof created === 'string' ? nowNs - parseGoTime(created) : 0n;
    return ageNs > 0n ? ageNs : 0n;
  } catch {
    return 0n;
  }
}

const newEntry = (): Entry => ({
  tracked: new Map(),
  changes: 0,
  stored: 0,
  needed: 0,
  ended: [],
  saving: Promise.resolve(),
  round: undefined,
});

const operationsOf = ({ tracked }: Entry): Operation[] =>
  [...tracked.values()].map(({ operation }) => operation);
