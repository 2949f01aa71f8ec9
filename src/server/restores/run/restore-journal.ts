import { z } from 'zod';
import {
  restoreJournalFolder,
  type ScratchFile,
  type StoredBackup,
} from '../../../archive/index.ts';
import { CodedError, rfc3339Seconds } from '../../../base/index.ts';
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
import {
  Journal,
  type JournalKind,
  type JournalOptions,
  type JournalPlace,
  readableRecords,
} from '../../runs/journal.ts';
import { JournalLog } from '../../runs/journal-log.ts';
import { entrySchema, triesSchema } from '../../runs/segment.ts';

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

/** A finished item. Names are short, because there are hundreds of thousands. */
const itemSchema = z.object({
  k: z.string(),
  /** Namespace in the cluster. */
  ns: z.string(),
  n: z.string(),
  o: z.enum(['created', 'updated', 'skipped', 'failed']),
  /** Set if the cluster has it. */
  x: z.literal(1).optional(),
  /** Its name in the cluster, if that is different. */
  as: z.string().optional(),
  /** Set for a claim without a data source. */
  b: z.literal(1).optional(),
  /** Operations. Only the run knows their shape. */
  ops: z.array(z.looseObject({})).optional(),
});
const hookSchema = z.object({ id: z.string(), pod: z.string().optional(), hasFailed: z.boolean() });

/** Records of a segment of a restore's journal. */
const restoreRecordsSchema = z.object({
  ...triesSchema.shape,
  items: z.array(itemSchema),
  entries: z.array(entrySchema),
  facts: z.array(z.looseObject({ kind: z.string() })),
  /** Finished hooks. */
  hooks: z.array(hookSchema),
  /** Hooks that run next. */
  begun: z.array(z.string()).default([]),
  /** Operations of unfinished items. */
  operations: z.array(z.looseObject({})).default([]),
});
type RestoreRecords = z.infer<typeof restoreRecordsSchema>;

const RESTORE_JOURNAL: JournalKind<RestoreRecords> = {
  word: 'restore',
  folderOf: restoreJournalFolder,
  schema: restoreRecordsSchema,
  newRecords: () => ({ items: [], entries: [], facts: [], hooks: [], begun: [], operations: [] }),
};

export interface RestoreJournalOptions extends JournalOptions {
  /** Whether the API server's clock is behind the time of the Restore now. */
  readonly isSetBack?: (() => boolean) | undefined;
}

const CLAIM = 'v1/PersistentVolumeClaim';

/**
 * The journal of a restore, with its items, operations and hooks. Work beyond the objects is stored
 * before its call returns. An object that no segment names is recognised by its labels.
 */
export class RestoreJournal extends Journal<RestoreRecords> implements RestoreSink, EarlierItems {
  readonly #isSetBack: (() => boolean) | undefined;
  #isClockSetBack = false;
  readonly #earlier: DoneItem[] = [];
  /** Claims of all tries. The after-run file is made from them. */
  readonly #claims: DoneItem[] = [];
  readonly #operations: JournaledOperation[] = [];
  /** Operations are noted when they begin, and again with their item. */
  readonly #operationsById = new Map<string, JournaledOperation>();
  readonly #facts: RestoreFact[] = [];
  readonly #hooks: HookRecord[] = [];
  readonly #begunHooks: string[] = [];

  private constructor(options: RestoreJournalOptions, log: JournalLog) {
    super(RESTORE_JOURNAL, options, { log });
    this.#isSetBack = options.isSetBack;
  }

  /** {@link Journal.read} */
  static async open(options: RestoreJournalOptions): Promise<RestoreJournal> {
    await using opening = new AsyncDisposableStack();
    const log = opening.use(await JournalLog.create(options.directory));
    const journal = opening.use(new RestoreJournal(options, log));
    await journal.read();
    opening.move();
    return journal;
  }

  protected override resumed(): void {
    this.#isClockSetBack = this.#facts.some(({ kind }) => kind === 'clock');
    this.#noteClock();
  }

  protected override take(records: RestoreRecords): void {
    for (const item of records.items) {
      const { k: kind, ns: namespace, n: name, o: outcome, x, as: restoredAs, b, ops = [] } = item;
      const exists = x === 1;
      const done: DoneItem = {
        kind,
        namespace,
        name,
        outcome,
        exists,
        ...(restoredAs !== undefined && { restoredAs }),
        ...(b === 1 && { isBare: true }),
      };
      this.#earlier.push(done);
      this.#noteClaim(done);
      this.#addOperations(ops as unknown as JournaledOperation[]);
    }
    this.#addOperations(records.operations as unknown as JournaledOperation[]);
    this.#facts.push(...(records.facts as unknown as RestoreFact[]));
    this.#hooks.push(...records.hooks);
    this.#begunHooks.push(...records.begun);
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
    this.segments.assertUsable();
    this.#noteClock();
    const { kind: k, namespace: ns, name: n, outcome: o, exists, restoredAs } = item;
    const { isBare, operations } = item;
    // Timeouts count from here, also for a later server.
    const created = rfc3339Seconds(this.clock.nowNs());
    const begun = operations.map(
      (operation): JournaledOperation =>
        this.#operationsById.get(idOfOperation(operation)) ?? { ...operation, created },
    );
    this.records.items.push({
      k,
      ns,
      n,
      o,
      ...(exists && { x: 1 as const }),
      ...(restoredAs !== undefined && { as: restoredAs }),
      ...(isBare === true && { b: 1 as const }),
      ...(begun.length > 0 && { ops: begun.map((operation) => ({ ...operation })) }),
    });
    this.added(k.length + ns.length + n.length + 64);
    if (begun.length > 0 || this.segments.isFull) await this.flush();
    else this.segments.flushLater();
    this.#noteClaim(item);
    this.#addOperations(begun);
  }

  /** Stored soon, so that a cancel or the next server finds operations of unfinished items. */
  begun(operations: readonly StartedRestoreOperation[]): void {
    this.segments.assertUsable();
    const created = rfc3339Seconds(this.clock.nowNs());
    const begun = operations.map((operation): JournaledOperation => ({ ...operation, created }));
    this.records.operations.push(...begun.map((operation) => ({ ...operation })));
    this.added(128 * begun.length);
    this.segments.flushLater();
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
    this.segments.assertUsable();
    this.records.facts.push({ ...fact });
    this.added(64);
    await this.flush();
    this.#facts.push(fact);
  }

  /** Stores a fact with later items. Without it, the next server finds out the same. */
  noteFact(fact: RestoreFact): void {
    this.segments.assertUsable();
    this.records.facts.push({ ...fact });
    this.added(64);
    this.segments.flushLater();
    this.#facts.push(fact);
  }

  /** Stores the note before it returns; then the hook runs. */
  async willRunHook(id: string): Promise<void> {
    this.segments.assertUsable();
    this.records.begun.push(id);
    this.added(id.length);
    await this.flush();
  }

  /** Stored at once. After a kill before that, it is unknown whether the hook has run. */
  addHook(record: HookRecord): void {
    this.records.hooks.push(record);
    this.added(record.id.length);
    // Later calls throw the error.
    this.flush().catch(() => undefined);
  }

  /** Stores everything and returns the complete log, until the journal closes. */
  async finish(): Promise<ScratchFile> {
    await this.flush();
    return this.finishedLog();
  }
}

const idOfOperation = ({ action, operationId, item }: StartedRestoreOperation): string =>
  JSON.stringify([action, operationId, item.group, item.resource, item.namespace, item.name]);

/** Operations in the readable segments of a restore's journal. Throws errors of the bucket. */
export async function journaledOperations(
  place: JournalPlace,
): Promise<readonly JournaledOperation[]> {
  const operations: JournaledOperation[] = [];
  for await (const records of readableRecords(RESTORE_JOURNAL, place)) {
    const found = [...records.items.flatMap(({ ops = [] }) => ops), ...records.operations];
    operations.push(...(found as unknown as JournaledOperation[]));
  }
  return operations;
}
