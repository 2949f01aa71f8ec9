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
import { merged } from './merge.ts';
import {
  countsOf,
  isAnyRunning,
  type Observation,
  observed,
  type OperationCounts,
} from './observe.ts';
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
  /** `[]` where there is none. Throws what the bucket throws, and `DAMAGED_ARCHIVE`. */
  load(subject: Subject, signal?: AbortSignal): Promise<readonly Operation[]>;
  save(subject: Subject, operations: readonly Operation[], signal?: AbortSignal): Promise<void>;
}

/** Whoever reaches the plugins. */
export interface OperationAsker {
  /** Never throws but for a cancel of its own signal. */
  ask(operation: Operation, signal: AbortSignal): Promise<Observation>;
  cancel(operation: Operation, signal: AbortSignal): Promise<void>;
}

export interface PollOptions {
  readonly asker: OperationAsker;
  /** How long an operation may take from its beginning. */
  readonly timeoutNsOf: (operation: Operation) => Nanoseconds;
  readonly signal: AbortSignal;
}

/** What a round of questions found. */
export interface Round extends OperationCounts {
  readonly operations: readonly Operation[];
  readonly isAnyRunning: boolean;
  /** Operations that this round saw come to their end. */
  readonly ended: readonly Operation[];
}

export interface OperationMapOptions {
  readonly store: OperationStore;
  readonly clock?: Clock;
  readonly logger?: Logger;
}

/** Questions at once: plugins answer from the API server. Our choice. */
const ASKED_AT_ONCE = 16;
/**
 * A plugin that cannot be asked is asked again after this, doubling. Our choice: a poll, and a
 * minute.
 */
const UNASKED_DELAY_NS = 10n * SECOND_NS;
const UNASKED_DELAY_NS_MAX = 60n * SECOND_NS;

/** One operation, and what is known of it only here. */
interface Tracked {
  operation: Operation;
  /** Since it is known here, and how long it had been running then. */
  readonly watch: Stopwatch;
  readonly ageNs: Nanoseconds;
  unasked:
    | { readonly since: Stopwatch; times: number; delayNs: Nanoseconds; nextNs: Nanoseconds }
    | undefined;
}

interface Entry {
  readonly tracked: Map<string, Tracked>;
  /** Counts changes; what was stored is the state at one of them. */
  changes: number;
  stored: number;
  /** The last change that is stored without being asked for: all but progress. */
  needed: number;
  /** Operations whose end no round has told yet: one that failed told nothing. */
  ended: Operation[];
  /** The store that runs, or ran last. */
  saving: Promise<void>;
  round: Promise<Round> | undefined;
}

/** A file that is read, for all who ask meanwhile. */
interface Loading {
  readonly entry: Promise<Entry>;
  readonly abort: AbortController;
  waiting: number;
}

/**
 * Operations of backups and restores in memory, by the UID of each: one that is deleted and made
 * again under its name has others. What matters after a restart is in the operations file before
 * anybody is told of it: that an operation was begun, its phase and its error. Progress alone is
 * stored when somebody wants to see it.
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

  /** Of a backup or restore that begins: what an older one of its name stored is not looked at. */
  begin(subject: Subject): void {
    assert(!this.#entries.has(subject.uid), 'operations of what begins only now');
    this.#entries.set(subject.uid, newEntry());
  }

  /**
   * Notes an operation that was begun, and stores it: after a restart its plugin can be told to
   * stop. Of several at once each is in the next store. Throws what the store throws; the operation
   * is then known here, and stored with the next one.
   */
  async record(subject: Subject, begun: BegunOperation, signal?: AbortSignal): Promise<Operation> {
    const entry = await this.#entry(subject, signal);
    const operation = newOperation(subject, begun, this.#clock.nowNs());
    // An action that was asked twice about an item begins one operation.
    if (!entry.tracked.has(keyOf(operation))) {
      entry.tracked.set(keyOf(operation), this.#track(operation));
      entry.needed = ++entry.changes;
    }
    await this.#save(subject, entry, { upTo: entry.needed, signal });
    return operation;
  }

  /**
   * Of a backup that begins, or that another server has begun: its journal has the operations, and
   * nothing is stored until the first poll.
   */
  takeOver(subject: Subject, begun: readonly BegunOperation[]): void {
    if (!this.#entries.has(subject.uid)) this.#entries.set(subject.uid, newEntry());
    this.note(subject, begun);
  }

  /**
   * Operations that the journal of their backup has: they are known here, and stored by the next
   * poll.
   */
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

  /** All operations, as of now. Throws what the store throws. */
  async get(subject: Subject, signal?: AbortSignal): Promise<readonly Operation[]> {
    return operationsOf(await this.#entry(subject, signal));
  }

  /**
   * Asks once about every operation that is running, and stores what has changed before it returns:
   * the file is never behind the phase that the caller writes next. A second call during a round
   * gets that one. Throws what the store throws; nothing is lost then.
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
      // A time-out of nothing is none.
      isOverdue: timeoutNsOf(operation) > 0n && ageNs + watch.elapsedNs > timeoutNsOf(operation),
    });
    if (result.mustCancel) {
      // Before its end is stored: after a kill in between it is told once more, which is better
      // than never.
      await asker.cancel(operation, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        const { operationID } = operation.spec;
        const fields = { action: actionOf(operation), operationID, error: messageOf(error) };
        this.#logger.warn(fields, 'an operation that timed out could not be canceled');
      });
    }
    // Read afresh meanwhile: what another server saw end stays as it ended.
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
   * Tells every running operation to stop, of a backup that has failed or is deleted; what becomes
   * of them a poll finds out. Returns those that could not be told, with the reason.
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
   * Stores what is newer here than in the bucket, so that a download shows it. Reads nothing where
   * nothing is known.
   */
  async flush(subject: Subject, signal?: AbortSignal): Promise<void> {
    const entry = this.#entries.get(subject.uid);
    if (entry) await this.#save(subject, entry, { upTo: entry.changes, signal });
  }

  /**
   * Stores the last state and forgets it: all operations are over. What could not be stored is
   * kept.
   */
  async finish(subject: Subject, signal?: AbortSignal): Promise<void> {
    const entry = this.#entries.get(subject.uid);
    if (!entry) return;
    await this.flush(subject, signal);
    this.forget(subject.uid);
  }

  /** Of what is no longer there. */
  forget(uid: string): void {
    this.#entries.delete(uid);
  }

  /**
   * Another server may have gone on meanwhile: everything is read afresh, and merged with what is
   * not stored yet.
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
    // Whoever names a location may find what the others do not.
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
    // One that leaves does not end it for the others; the last one does.
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
    // Nobody waits for it any more, and another one may have been read since.
    signal?.throwIfAborted();
    const known = this.#entries.get(subject.uid);
    if (known) return known;
    this.#entries.set(subject.uid, entry);
    return entry;
  }

  /** Of an older backup of the name are none. */
  async #load(subject: Subject, signal: AbortSignal | undefined): Promise<readonly Operation[]> {
    const stored = await this.#store.load(subject, signal);
    return stored.filter((operation) => ['', subject.uid].includes(subjectUidOf(operation)));
  }

  /**
   * The age is read from the wall clock once; later steps of it neither end an operation nor
   * prolong it.
   */
  #track(operation: Operation): Tracked {
    const ageNs = ageOf(operation, this.#clock.nowNs());
    const watch = new Stopwatch(monotonicOf(this.#clock));
    return { operation, watch, ageNs, unasked: undefined };
  }

  /** One store at a time; those that wait meanwhile share the next one. */
  async #save(
    subject: Subject,
    entry: Entry,
    { upTo, signal }: { readonly upTo: number; readonly signal: AbortSignal | undefined },
  ): Promise<void> {
    while (entry.stored < upTo) {
      const before = entry.saving;
      await before.catch(() => undefined);
      // Another one that waited has begun a store, which may have what is wanted.
      if (entry.stored >= upTo || entry.saving !== before) continue;
      const { changes } = entry;
      entry.saving = this.#store.save(subject, operationsOf(entry), signal).then(() => {
        entry.stored = changes;
      });
      await entry.saving;
    }
  }
}

/** Nothing for one that says no time, or one from the future. */
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
