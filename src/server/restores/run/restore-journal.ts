import {
  restoreJournalFolder,
  type ScratchFile,
  type StoredBackup,
} from '../../../archive/index.ts';
import {
  type Clock,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  rfc3339Seconds,
  systemClock,
} from '../../../base/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import type { Restore } from '../../../kube/index.ts';
import type {
  DoneItem,
  FinishedRestoreItem,
  HookRecord,
  RestoreJournal as EarlierItems,
  RestoreSink,
  StartedRestoreOperation,
} from '../../../restore/index.ts';
import type { FileRestoreFact, VolumeFact } from '../../../restore-volumes/index.ts';
import { gzipMember, JournalLog } from '../../runs/journal-log.ts';
import { patiently } from '../../runs/bucket-retries.ts';
import type { LogSink } from '../../runs/run-log.ts';
import type { JournalEntry, Segment, SegmentParts } from '../../runs/segment.ts';
import { type SegmentLimits, SegmentWriter } from '../../runs/segment-writer.ts';
import { readSegment, SEGMENT_UNREAD, StoredTries } from '../../runs/journal-tries.ts';
import { type RestoreRecords, restoreRecordsSchema } from './records.ts';

/** An operation of an item, with its start time. */
export interface JournaledOperation extends StartedRestoreOperation {
  /** RFC 3339. */
  readonly created?: string;
  /** The claim of a pod volume. */
  readonly claim?: string;
}

/** A missing namespace that is created next. */
interface NamespaceFact {
  readonly kind: 'namespace';
  readonly name: string;
}

/** The API server's clock is behind the Restore's time, so new objects may look older than it. */
interface ClockFact {
  readonly kind: 'clock';
}

/** The stored Backup that the restore is made from. */
interface BackupFact {
  readonly kind: 'backup';
  readonly uid: string;
}

export type RestoreFact = VolumeFact | FileRestoreFact | NamespaceFact | ClockFact | BackupFact;

export interface RestoreJournalOptions {
  readonly bucket: Bucket;
  readonly name: string;
  readonly uid: string;
  /** `isJournalSealed` of the Restore. */
  readonly isSealed: boolean;
  readonly directory: string;
  /** Called right before each put. */
  readonly assertLeading: () => void;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly clock?: Clock | undefined;
  /** Whether the API server's clock is behind the time of the Restore now. */
  readonly isSetBack?: (() => boolean) | undefined;
  readonly patienceMs?: number | undefined;
  readonly limits?: SegmentLimits | undefined;
}

const NOTHING = Buffer.alloc(0);
const CLAIM = 'v1/PersistentVolumeClaim';

/** Finished work that is not stored yet. */
interface Pending {
  readonly records: RestoreRecords;
  readonly log: readonly string[];
}

const newRecords = (): RestoreRecords => ({
  items: [],
  entries: [],
  facts: [],
  hooks: [],
  begun: [],
  operations: [],
});

/**
 * Records the progress of a restore in the bucket, so that another server can continue it. Contains
 * items and their operations, hooks, warnings and errors, and the log. Work beyond the objects is
 * stored before its call returns. An object that no segment names is recognised by its labels.
 */
export class RestoreJournal implements RestoreSink, LogSink, EarlierItems, AsyncDisposable {
  readonly #clock: Clock;
  readonly #isSetBack: (() => boolean) | undefined;
  #isClockSetBack = false;
  readonly #log: JournalLog;
  readonly #segments: SegmentWriter<Pending>;
  readonly #earlier: DoneItem[] = [];
  /** Claims of all tries. The after-run file is made from them. */
  readonly #claims: DoneItem[] = [];
  readonly #operations: JournaledOperation[] = [];
  /** Operations are noted when they begin, and again with their item. */
  readonly #operationsById = new Map<string, JournaledOperation>();
  readonly #entries: JournalEntry[] = [];
  readonly #facts: RestoreFact[] = [];
  readonly #hooks: HookRecord[] = [];
  readonly #begunHooks: string[] = [];
  #records = newRecords();
  #isChanged = false;

  private constructor(options: RestoreJournalOptions, log: JournalLog) {
    const { bucket, name, uid, assertLeading, logger, signal, patienceMs, limits } = options;
    const { isSealed } = options;
    this.#clock = options.clock ?? systemClock;
    this.#isSetBack = options.isSetBack;
    this.#log = log;
    this.#segments = new SegmentWriter({
      bucket,
      folder: restoreJournalFolder(name, uid),
      kind: 'restore',
      assertLeading,
      isSealed,
      logger,
      signal,
      patienceMs,
      limits,
      take: () => this.#taken(),
      encode,
      onStored: (parts) => log.append(parts.log),
      onLost: (pending) => {
        log.giveBack(pending.log);
      },
    });
  }

  /**
   * Reads earlier tries, and stores a first segment before anything else. Throws `DAMAGED_JOURNAL`
   * for an unreadable segment: repeating its unknown operations would be wrong. Throws `STILL_AWAY`
   * and `SCRATCH_FULL`.
   */
  static async open(options: RestoreJournalOptions): Promise<RestoreJournal> {
    const log = await JournalLog.create(options.directory);
    try {
      const journal = new RestoreJournal(options, log);
      await journal.#read(options);
      return journal;
    } catch (error) {
      await log.close();
      throw error;
    }
  }

  async #read(options: RestoreJournalOptions): Promise<void> {
    const { bucket, name, uid, isSealed, signal, logger, patienceMs } = options;
    const tries = new StoredTries({
      bucket,
      isSealed,
      signal,
      folder: restoreJournalFolder(name, uid),
      kind: 'restore',
      schema: restoreRecordsSchema,
      patiently: (what, task) => patiently(task, { what, logger, signal, patienceMs }),
    });
    const last = await tries.last();
    this.#segments.follow(last);
    for await (const segment of tries.segments(last)) await this.#take(segment);
    this.#records.includes = [...last.keys];
    this.#isChanged = true;
    this.#isClockSetBack = this.#facts.some(({ kind }) => kind === 'clock');
    this.#noteClock();
    await this.flush();
  }

  async #take({ records, log }: Segment<RestoreRecords>): Promise<void> {
    for (const item of records.items) {
      const { k: kind, ns: namespace, n: name, o: outcome, x, as: restoredAs, ops = [] } = item;
      const exists = x === 1;
      const done: DoneItem = {
        kind,
        namespace,
        name,
        outcome,
        exists,
        ...(restoredAs !== undefined && { restoredAs }),
      };
      this.#earlier.push(done);
      this.#noteClaim(done);
      this.#addOperations(ops as unknown as JournaledOperation[]);
    }
    this.#addOperations(records.operations as unknown as JournaledOperation[]);
    this.#entries.push(...records.entries);
    this.#facts.push(...(records.facts as unknown as RestoreFact[]));
    this.#hooks.push(...records.hooks);
    this.#begunHooks.push(...records.begun);
    await this.#log.append(log);
  }

  /** Whether an earlier try has stored anything. */
  get isContinued(): boolean {
    return this.#segments.isContinued;
  }

  /** Items of earlier tries. */
  all(): Iterable<DoneItem> {
    return this.#earlier;
  }

  /** Claims that any try has created. */
  get claims(): readonly DoneItem[] {
    return this.#claims;
  }

  #noteClaim(item: DoneItem): void {
    if (item.kind === CLAIM && item.outcome === 'created') this.#claims.push(item);
  }

  /** Operations of all tries. */
  get operations(): readonly JournaledOperation[] {
    return this.#operations;
  }

  #addOperations(operations: readonly JournaledOperation[]): void {
    for (const operation of operations) {
      const id = idOfOperation(operation);
      if (this.#operationsById.has(id)) continue;
      this.#operationsById.set(id, operation);
      this.#operations.push(operation);
    }
  }

  /** Warnings and errors of earlier tries. */
  get entries(): readonly JournalEntry[] {
    return this.#entries;
  }

  get facts(): readonly RestoreFact[] {
    return this.#facts;
  }

  /** Hooks that earlier tries have finished. */
  get hooks(): readonly HookRecord[] {
    return this.#hooks;
  }

  /** Hooks that earlier tries have begun or finished. */
  get begunHooks(): readonly string[] {
    return this.#begunHooks;
  }

  async put(item: FinishedRestoreItem): Promise<void> {
    this.#segments.assertUsable();
    this.#noteClock();
    const { kind: k, namespace: ns, name: n, outcome: o, exists, restoredAs, operations } = item;
    // Timeouts count from here, also for a later server.
    const created = rfc3339Seconds(this.#clock.nowNs());
    const begun = operations.map(
      (operation): JournaledOperation =>
        this.#operationsById.get(idOfOperation(operation)) ?? { ...operation, created },
    );
    this.#records.items.push({
      k,
      ns,
      n,
      o,
      ...(exists && { x: 1 as const }),
      ...(restoredAs !== undefined && { as: restoredAs }),
      ...(begun.length > 0 && { ops: begun.map((operation) => ({ ...operation })) }),
    });
    this.#added(k.length + ns.length + n.length + 64);
    if (begun.length > 0 || this.#segments.isFull) await this.flush();
    else this.#segments.flushLater();
    this.#noteClaim(item);
    this.#addOperations(begun);
  }

  /** Stored soon, so that a cancel or the next server finds operations of unfinished items. */
  begun(operations: readonly StartedRestoreOperation[]): void {
    this.#segments.assertUsable();
    const created = rfc3339Seconds(this.#clock.nowNs());
    const begun = operations.map((operation): JournaledOperation => ({ ...operation, created }));
    this.#records.operations.push(...begun.map((operation) => ({ ...operation })));
    this.#added(128 * begun.length);
    this.#segments.flushLater();
    this.#addOperations(begun);
  }

  /** Whether the clock was behind at any known moment of any try. */
  get isClockSetBack(): boolean {
    this.#noteClock();
    return this.#isClockSetBack;
  }

  #noteClock(): void {
    if (this.#isClockSetBack || this.#isSetBack?.() !== true) return;
    this.#isClockSetBack = true;
    this.noteFact({ kind: 'clock' });
  }

  /**
   * Notes the stored Backup before any item. Throws `OTHER_BACKUP` if an earlier try used another
   * one. Journals of older versions have no note. A Backup that is newer than the Restore is then
   * another one, because a restore begins with a finished backup.
   */
  noteBackup(
    { name, uid = '', creationTimestamp }: StoredBackup['metadata'],
    { metadata }: Pick<Restore, 'metadata'>,
  ): void {
    const noted = this.#facts.find((fact) => fact.kind === 'backup');
    if (noted?.uid === uid) return;
    const isNewer =
      Date.parse(creationTimestamp ?? '') > Date.parse(metadata.creationTimestamp ?? '');
    if (!noted && !(this.isContinued && isNewer)) {
      this.noteFact({ kind: 'backup', uid });
      return;
    }
    const how = noted
      ? `The UID of the Backup was ${noted.uid}, and is ${uid} now`
      : 'The Backup is newer than the restore';
    const text = `the files of backup ${name} were replaced while this restore ran. ${how}. Check the restored objects, and create another restore`;
    throw new CodedError('OTHER_BACKUP', text);
  }

  willCreateNamespace(name: string): Promise<void> {
    return this.addFact({ kind: 'namespace', name });
  }

  wasNamespaceBegun(name: string): boolean {
    return this.#facts.some((fact) => fact.kind === 'namespace' && fact.name === name);
  }

  /** Stores a fact before it returns, because the next server must not repeat the work. */
  async addFact(fact: RestoreFact): Promise<void> {
    this.#segments.assertUsable();
    this.#records.facts.push({ ...fact });
    this.#added(64);
    await this.flush();
    this.#facts.push(fact);
  }

  /** Stores a fact with later items. Without it, the next server finds out the same. */
  noteFact(fact: RestoreFact): void {
    this.#segments.assertUsable();
    this.#records.facts.push({ ...fact });
    this.#added(64);
    this.#segments.flushLater();
    this.#facts.push(fact);
  }

  /** Stores the note before it returns; then the hook runs. */
  async willRunHook(id: string): Promise<void> {
    this.#segments.assertUsable();
    this.#records.begun.push(id);
    this.#added(id.length);
    await this.flush();
  }

  /** Stored at once. After a kill before that, it is unknown whether the hook has run. */
  addHook(record: HookRecord): void {
    this.#records.hooks.push(record);
    this.#added(record.id.length);
    // Later calls throw the error.
    this.flush().catch(() => undefined);
  }

  addLine(line: string): void {
    this.#log.add(line);
    this.#added(line.length);
    this.#segments.flushLater();
  }

  addEntry(entry: JournalEntry): void {
    this.#records.entries.push(entry);
    this.#added(entry.text.length + 32);
    this.#segments.flushLater();
  }

  #added(bytes: number): void {
    this.#isChanged = true;
    this.#segments.added(bytes);
  }

  #taken(): Pending | undefined {
    if (!this.#isChanged) return undefined;
    const pending = { records: this.#records, log: this.#log.take() };
    this.#records = newRecords();
    this.#isChanged = false;
    return pending;
  }

  /** Throws `STILL_AWAY` and `SCRATCH_FULL`, and again at every later call. */
  flush(): Promise<void> {
    return this.#segments.flush();
  }

  /** Stores everything and returns the complete log, until the journal closes. */
  async finish(): Promise<ScratchFile> {
    await this.flush();
    return this.#finishedLog();
  }

  /** The log of a failed restore, including lines that are not in the bucket. */
  async finishLog(): Promise<ScratchFile> {
    await this.#segments.end('the restore has failed');
    return this.#finishedLog();
  }

  #finishedLog(): Promise<ScratchFile> {
    return this.#segments.alone(() => this.#log.finish());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#segments.close();
    await this.#log.close();
  }
}

const idOfOperation = ({ action, operationId, item }: StartedRestoreOperation): string =>
  JSON.stringify([action, operationId, item.group, item.resource, item.namespace, item.name]);

async function encode({ records, log }: Pending): Promise<SegmentParts> {
  const [packed, logPart] = await Promise.all([
    gzipMember(JSON.stringify(records)),
    gzipMember(log.join('')),
  ]);
  return { records: packed, tar: NOTHING, log: logPart };
}

export interface RestoreJournalPlace {
  readonly bucket: Bucket;
  readonly name: string;
  readonly uid: string;
  readonly signal: AbortSignal;
}

/** Operations in the readable segments of a restore's journal. Throws errors of the bucket. */
export async function journaledOperations(
  place: RestoreJournalPlace & Pick<RestoreJournalOptions, 'isSealed' | 'logger'>,
): Promise<readonly JournaledOperation[]> {
  const { bucket, name, uid, isSealed, logger, signal } = place;
  const options = { schema: restoreRecordsSchema, isSealed, signal };
  const operations: JournaledOperation[] = [];
  const keys = await Array.fromAsync(bucket.list(restoreJournalFolder(name, uid), { signal }));
  for (const key of keys.sort()) {
    try {
      const { records } = await readSegment(bucket, key, options);
      const found = [...records.items.flatMap(({ ops = [] }) => ops), ...records.operations];
      operations.push(...(found as unknown as JournaledOperation[]));
    } catch (error) {
      if (!isCode(error, 'DAMAGED_JOURNAL', 'BLOB_NOT_FOUND', 'JOURNAL_NOT_KEPT')) throw error;
      logger.warn({ restore: name, error: messageOf(error) }, SEGMENT_UNREAD);
    }
  }
  return operations;
}

/** Removes the journal after the Restore has its phase. Throws errors of the bucket. */
export async function removeRestoreJournal(place: RestoreJournalPlace): Promise<void> {
  const { bucket, name, uid, signal } = place;
  for await (const key of bucket.list(restoreJournalFolder(name, uid), { signal })) {
    await bucket.delete(key, { signal });
  }
}
