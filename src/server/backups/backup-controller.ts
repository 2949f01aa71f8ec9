import {
  CanceledError,
  type Clock,
  isCode,
  type Logger,
  messageOf,
  rfc3339Seconds,
  systemClock,
} from '../../base/index.ts';
import {
  type Backup,
  type BackupDefaults,
  type PolicySummary,
  type Progress,
  validateBackup,
} from '../../backup/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import {
  Controller,
  type Discovery,
  keyOf,
  type KubeClient,
  NAMESPACES,
  refOf,
  type Result,
} from '../../kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../plugin/index.ts';
import { LeadingController, type LeadParts } from '../leading-controller.ts';
import { subjectOf } from './after-run.ts';
import { BackupMetrics } from './backup-metrics.ts';
import { RunsView } from '../runs/runs-view.ts';
import type { ActionSessions, BackupRunner, Buckets } from './contract.ts';
import { DeletionRequests } from './deletion-requests.ts';
import { LostBackups, type RemoveSnapshots } from './lost-backups.ts';
import { cancelOperations, withUntold } from '../operations/cancel.ts';
import { CANCELED, isCanceled } from '../runs/canceled.ts';
import { failedStatus } from '../runs/failed-status.ts';
import { PhaseEvents } from '../runs/phase-events.ts';
import { BACKUP_PHASES } from './phase-meanings.ts';
import { PhaseWriter } from './phase-writer.ts';
import { BACKUP_RESOURCE, hasHadRun, isOver, isWaiting, phaseOf } from './phases.ts';
import { planQueue, type QueueStep } from './queue.ts';
import { patiently } from '../runs/patience.ts';
import { SharedBackups } from './shared-backups.ts';
import type { StoredSnapshotsOptions } from './stored-snapshots.ts';
import { UnderWayNotes } from './under-way.ts';

export interface BackupControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** Of this process, as Events name it. */
  readonly host: string;
  /** The watch that it shares with the controllers that follow it. */
  readonly backups?: SharedBackups;
  readonly discovery: () => Promise<Discovery>;
  readonly buckets: Buckets;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  readonly runner: () => Promise<BackupRunner>;
  readonly snapshotLocations: StoredSnapshotsOptions['snapshotLocations'];
  readonly removeSnapshots: RemoveSnapshots;
  readonly defaults: BackupDefaults;
  readonly loadPolicies: (backup: Backup) => Promise<PolicySummary | undefined>;
  readonly isServed: (dataMover: string) => Promise<boolean | undefined>;
  /** Put on every Backup that begins. */
  readonly annotations: Readonly<Record<string, string>>;
  /** Whether another controller of this server deletes backups: it cancels those that are still made first. */
  readonly isDeletedElsewhere?: boolean;
  /** Backups at once. Velero: `--concurrent-backups`. */
  readonly runningMax: number;
  readonly metrics: BackupMetrics;
  readonly clock?: Clock;
}

const QUEUE_KEY = 'queue';
/** Of the queue, should a watch have missed something. Our choice. */
const LOOK_MS = 60_000;
/** Our choice: the next progress says more. */
const PROGRESS_PATIENCE_MS = 10_000;
const CANCELED_AT_ONCE = 4;
/** Of what could not be reached. Our choice. */
const AGAIN_MS = 10_000;
/** Velero's own sentence for what a server that was killed has left (pkg/cmd/server/server.go). */
const LEFT_IN_PROGRESS =
  'found a backup with status "InProgress" during the server starting, mark it as "Failed"';

/**
 * Velero's controllers `backup-queue` and `backup` in one: the queue, the runs, and backups that are canceled or deleted while they are made. What
 * is under way when this process dies, another one goes on with.
 */
export class BackupController extends LeadingController<BackupsRun> {
  readonly name = 'backup';
  readonly #options: BackupControllerOptions;

  constructor(options: BackupControllerOptions) {
    super();
    this.#options = options;
  }

  protected begin(...parts: LeadParts): BackupsRun {
    return new BackupsRun(this.#options, ...parts);
  }
}

/** A backup that runs here. */
interface Task {
  readonly uid: string;
  readonly abort: AbortController;
  readonly done: Promise<void>;
  /** Its Backup was seen to go. */
  vanished?: boolean;
}

/** One time that this process leads. */
class BackupsRun {
  readonly #options: BackupControllerOptions;
  readonly #signal: AbortSignal;
  readonly #assertLeading: () => void;
  readonly #clock: Clock;
  readonly #backups: RunsView<Backup>;
  readonly #phases: PhaseWriter;
  readonly #tasks = new Map<string, Task>();
  readonly #deletions: DeletionRequests;
  readonly #queue: Controller;
  readonly #cancels: Controller;
  readonly #notes: UnderWayNotes;
  readonly #lost: LostBackups;
  readonly #events: PhaseEvents<Backup>;
  /** UIDs of those that have had their run here: what the watch still shows of them is old. */
  readonly #hadRun = new Set<string>();
  #hasStarted = false;

  constructor(options: BackupControllerOptions, signal: AbortSignal, assertLeading: () => void) {
    const { client, logger, namespace } = options;
    this.#options = options;
    this.#signal = signal;
    this.#assertLeading = assertLeading;
    this.#clock = options.clock ?? systemClock;
    const { host } = options;
    this.#events = new PhaseEvents({
      ...{ client, logger, host, clock: client.clock, kind: 'backup', meanings: BACKUP_PHASES },
    });
    const shared = options.backups ?? new SharedBackups({ client, logger, namespace });
    this.#backups = new RunsView({
      ...{ client, logger, namespace, assertLeading, signal, shared },
      resource: BACKUP_RESOURCE,
    });
    this.#phases = new PhaseWriter({
      ...{ backups: this.#backups, logger, signal, clock: this.#clock },
      onDue: () => {
        this.#queue.queue.add(QUEUE_KEY);
      },
    });
    this.#deletions = new DeletionRequests({
      ...{ client, logger, namespace, assertLeading, signal },
      ...{ backups: this.#backups, isElsewhere: options.isDeletedElsewhere === true },
    });
    this.#notes = new UnderWayNotes({ client, logger, namespace, assertLeading });
    const { buckets, sessions, operations, discovery, snapshotLocations, removeSnapshots } =
      options;
    this.#lost = new LostBackups({
      ...{ client, logger, namespace, assertLeading, signal },
      ...{ buckets, sessions, operations, discovery, snapshotLocations, removeSnapshots },
      ...{ backups: this.#backups, notes: this.#notes },
      onRemoved: () => {
        this.#queue.queue.add(QUEUE_KEY);
      },
    });
    this.#queue = new Controller({
      ...{ name: 'backup-queue', workers: 1, logger },
      reconcile: () => this.#reconcileQueue(),
    });
    this.#cancels = new Controller({
      ...{ name: 'backup-cancel', workers: CANCELED_AT_ONCE, logger },
      reconcile: (key) => this.#cancelWaiting(key),
    });
  }

  get failure(): string | undefined {
    return this.#backups.failure;
  }

  async run(): Promise<void> {
    const watched = await this.#backups.open();
    try {
      if (!this.#signal.aborted) await this.#runWatched();
    } finally {
      await watched[Symbol.asyncDispose]();
    }
  }

  async #runWatched(): Promise<void> {
    this.#backups.onChange((after, before) => {
      this.#changed(after, before);
    });
    // From here on nothing is missed.
    this.#hasStarted = true;
    await this.#lost.look();
    for (const backup of this.#backups.list()) this.#wake(backup);
    this.#queue.queue.add(QUEUE_KEY);
    await Promise.all([
      this.#deletions.run(),
      this.#lost.run(),
      this.#queue.run(this.#signal),
      this.#cancels.run(this.#signal),
    ]);
    await Promise.all([...this.#tasks.values()].map(({ done }) => done));
    await this.#events.flush();
  }

  #changed(after: Backup | undefined, before: Backup | undefined): void {
    if (!this.#hasStarted) return;
    this.#events.changed(after, before);
    if (!after || (before && before.metadata.uid !== after.metadata.uid)) {
      if (before && !isOver(phaseOf(before))) this.#vanished(before);
      // Whoever deletes one that is over removes its files.
      else if (before) this.#lost.over(before);
      if (before) this.#hadRun.delete(before.metadata.uid);
      if (before) this.#phases.forget(before.metadata.uid);
      if (before) this.#options.metrics.deleted(before);
    }
    if (after) this.#wake(after);
    if (after && before && isOver(phaseOf(after)) && !isOver(phaseOf(before))) {
      if (!this.#tasks.has(keyOf(after.metadata))) this.#lost.over(after);
      // Of what the other controllers have ended little is kept, but for what is counted.
      this.#options.metrics.ended(after, before);
    }
    // The place that it had is free.
    if (!after || phaseOf(after) !== (before && phaseOf(before))) this.#queue.queue.add(QUEUE_KEY);
  }

  #wake(backup: Backup): void {
    if (!isCanceled(backup)) return;
    if (isWaiting(phaseOf(backup))) this.#cancels.queue.add(keyOf(backup.metadata));
    else this.#cancelTask(backup);
  }

  #cancelTask({ metadata }: Backup): void {
    const task = this.#tasks.get(keyOf(metadata));
    if (task?.uid === metadata.uid) task.abort.abort(new CanceledError('user'));
    else this.#queue.queue.add(QUEUE_KEY);
  }

  /** It was deleted while it was made, or waited: what it began is told to stop, and nothing stays in the bucket. */
  #vanished(backup: Backup): void {
    const key = keyOf(backup.metadata);
    const task = this.#tasks.get(key);
    if (task?.uid === backup.metadata.uid) {
      task.vanished = true;
      task.abort.abort(new CanceledError('user'));
      return;
    }
    if (!/^(WaitingFor|Finalizing|InProgress)/.test(phaseOf(backup))) return;
    this.#lost.add(backup);
  }

  async #reconcileQueue(): Promise<Result> {
    this.#phases.begin();
    await this.#moveQueue();
    return { requeueAfterMs: Math.min(LOOK_MS, this.#phases.nextMs) };
  }

  async #moveQueue(): Promise<void> {
    const { client, runningMax } = this.#options;
    const backups = this.#backups.list().filter((backup) => !isOver(phaseOf(backup)));
    for (const backup of backups) {
      const phase = phaseOf(backup);
      const key = keyOf(backup.metadata);
      if (
        ['', 'New', 'Queued', 'ReadyToStart'].includes(phase) &&
        isCanceled(backup) &&
        !this.#isHeld(key)
      ) {
        await this.#phases.step(backup, {
          ...failedStatus(CANCELED, this.#clock),
          queuePosition: null,
        });
      } else if (['ReadyToStart', 'InProgress'].includes(phase) && !this.#isHeld(key)) {
        if (!this.#hadRun.has(backup.metadata.uid)) this.#begin(backup);
      }
    }
    const open = this.#backups
      .list()
      .filter((backup) => !isOver(phaseOf(backup)) && !this.#phases.isStalled(backup));
    const isQueueing = open.some((backup) => ['', 'New', 'Queued'].includes(phaseOf(backup)));
    if (!isQueueing) return;
    const namespaces = await client.collect(
      NAMESPACES,
      { signal: this.#signal },
      ({ metadata }) => [metadata.name],
    );
    const isHeld = (backup: Backup): boolean =>
      this.#phases.isRefused(backup) || this.#isHeld(keyOf(backup.metadata));
    const refusals = ({ backup }: QueueStep): number => this.#phases.refusals(backup.metadata.uid);
    const frozen = this.#lost.frozen();
    const steps = [...planQueue(open, { namespaces, runningMax, frozen, isHeld })];
    for (const step of steps.sort((a, b) => refusals(a) - refusals(b))) {
      const { backup, phase, position } = step;
      const written = await this.#phases.step(backup, { phase, queuePosition: position ?? null });
      if (!written) continue;
      if (phase === 'ReadyToStart') {
        if (!isHeld(backup)) this.#begin(written);
      } else if (phaseOf(backup) !== 'Queued') this.#queue.queue.add(QUEUE_KEY);
    }
  }

  /** Another Backup of its name, which was deleted, is still being ended or removed: both would write below one folder of the bucket. */
  #isHeld(key: string): boolean {
    return this.#tasks.has(key) || this.#lost.has(key);
  }

  /** Runs it beside the controllers, until it has its next phase. */
  #begin(backup: Backup): void {
    const key = keyOf(backup.metadata);
    const abort = new AbortController();
    // Whatever ends this process's turn, another one goes on.
    const leave = (): void => {
      abort.abort(new CanceledError('shutdown'));
    };
    this.#signal.addEventListener('abort', leave, { once: true });
    if (this.#signal.aborted) leave();
    // While no server led.
    if (isCanceled(backup)) abort.abort(new CanceledError('user'));
    const done = this.#make(backup, abort.signal)
      .catch((error: unknown) => {
        if (this.#signal.aborted || isCode(error, 'LEADERSHIP_LOST')) return;
        const fields = { backup: backup.metadata.name, error: messageOf(error) };
        this.#options.logger.error(fields, 'a backup could not be run, and is looked at again');
      })
      .finally(() => {
        this.#signal.removeEventListener('abort', leave);
        const task = this.#tasks.get(key);
        this.#tasks.delete(key);
        if (this.#signal.aborted) return;
        // Whatever the run was at: it may have been over, and only its journal was still removed.
        if (task?.vanished === true) this.#lost.add(backup);
        this.#noteIfOver(backup);
        this.#queue.queue.add(QUEUE_KEY);
        this.#queue.queue.addAfter(QUEUE_KEY, AGAIN_MS);
      });
    this.#tasks.set(key, { uid: backup.metadata.uid, abort, done });
  }

  /** Its note goes when nothing more becomes of it. */
  #noteIfOver({ metadata }: Backup): void {
    const now = this.#backups.get(metadata);
    if (now?.metadata.uid === metadata.uid && hasHadRun(phaseOf(now))) this.#lost.over(now);
  }

  async #make(given: Backup, signal: AbortSignal): Promise<void> {
    const { metrics, logger } = this.#options;
    const { name } = given.metadata;
    let backup = given;
    if (phaseOf(backup) === 'ReadyToStart') {
      const started = await this.#start(backup, signal);
      if (!started) return;
      backup = started;
    } else if (backup.metadata.annotations?.[MADE_BY_ANNOTATION] === undefined) {
      await this.#phases.insist(backup, { status: failedStatus(LEFT_IN_PROGRESS, this.#clock) });
      return;
    } else logger.info({ backup: name }, 'going on with a backup that another server began');
    metrics.attempted(backup);
    let isEnded = false;
    let untold: string | undefined;
    try {
      const about = { what: 'ask the API server what it serves', logger, signal };
      const runner = await patiently(() => this.#options.runner(), about);
      const { uid } = backup.metadata;
      if (!this.#notes.has(uid)) {
        const noting = { what: 'note that a backup is under way', logger, signal };
        await patiently(() => this.#notes.write(backup, signal), noting);
      }
      const outcome = await runner.run({
        backup,
        signal,
        leaving: this.#signal,
        onEnded: () => (isEnded = true),
        onUntold: (text) => (untold = text),
        assertLeading: this.#assertLeading,
        onProgress: (progress) => this.#tell(backup, progress),
      });
      const status = { ...outcome.status, phase: outcome.phase };
      const written = await this.#phases.insist(backup, { status });
      this.#hadRun.add(backup.metadata.uid);
      if (written) metrics.itemsDone(written, outcome.tarballBytes);
      if (written) await this.#forget(written);
      else this.#lost.add(backup);
    } catch (error) {
      if (this.#signal.aborted || isCode(error, 'LEADERSHIP_LOST')) return;
      const what = signal.aborted ? CANCELED : `backup execution failed: ${messageOf(error)}`;
      const reason = withUntold(what, untold);
      const written = await this.#phases.insist(backup, {
        status: failedStatus(reason, this.#clock),
      });
      this.#hadRun.add(backup.metadata.uid);
      this.#options.operations.forget(backup.metadata.uid);
      if (!written) this.#lost.add(backup);
      else {
        logger.error({ backup: name, error: messageOf(error) }, 'backup failed');
        if (isEnded) await this.#forget(written);
        else this.#lost.over(written, { isLeft: true });
      }
    }
  }

  /** The next one says more: none is waited for. */
  async #tell(backup: Backup, progress: Progress): Promise<void> {
    try {
      await this.#backups.insist(backup, { status: { progress } }, PROGRESS_PATIENCE_MS);
    } catch (error) {
      if (!isCode(error, 'STILL_AWAY')) throw error;
      const fields = { backup: backup.metadata.name, error: messageOf(error) };
      this.#options.logger.warn(fields, 'the progress of a backup could not be written');
    }
  }

  /** The journal is of no use any more. What cannot be done now is tried again when the note of the backup goes. */
  async #forget(backup: Backup): Promise<void> {
    try {
      const runner = await this.#options.runner();
      const options = { signal: this.#signal, assertLeading: this.#assertLeading };
      await runner.forget(backup, options);
      this.#lost.forgotten(backup);
    } catch (error) {
      const fields = { backup: backup.metadata.name, error: messageOf(error) };
      this.#options.logger.warn(fields, 'the journal of a backup could not be removed');
    }
  }

  /** Undefined where it cannot run, and says why. */
  async #start(given: Backup, signal: AbortSignal): Promise<Backup | undefined> {
    const { client, defaults, loadPolicies, isServed, metrics, logger } = this.#options;
    const discovery = await this.#options.discovery();
    const nowNs = this.#clock.nowNs();
    const checked = await validateBackup(
      given,
      { client, resources: discovery, defaults, nowNs, loadPolicies, isServed },
      signal,
    );
    const { backup, errors, warnings } = checked;
    const { name } = given.metadata;
    for (const warning of warnings)
      logger.warn({ backup: name, warning }, 'a Backup has an oddity');
    const isValid = errors.length === 0;
    const status = isValid
      ? { ...backup.status, phase: 'InProgress', startTimestamp: rfc3339Seconds(nowNs) }
      : { ...backup.status, phase: 'FailedValidation' };
    const annotations = {
      ...backup.metadata.annotations,
      ...this.#options.annotations,
      ...(isValid && { [MADE_BY_ANNOTATION]: 'longshore' }),
    };
    const { labels } = backup.metadata;
    const written = await this.#phases.insist(given, {
      ...{ metadata: { labels, annotations }, spec: backup.spec, status },
    });
    if (isValid) return written;
    logger.error({ backup: name, errors }, 'a Backup is not valid');
    if (written) metrics.invalid(written);
    return undefined;
  }

  /** Of one that waits for its operations: they are told to stop, and whoever follows them sees their ends. */
  async #cancelWaiting(key: string): Promise<Result | undefined> {
    const backup = this.#backups.get(refOf(key));
    if (!backup || !isWaiting(phaseOf(backup)) || !isCanceled(backup)) return undefined;
    const { sessions, operations, logger } = this.#options;
    await using session = await sessions.open(backup, logger);
    const options = { asker: session.asker, signal: this.#signal };
    const untold = await cancelOperations(operations, subjectOf(backup), options);
    if (untold === undefined) return undefined;
    logger.warn(
      { backup: backup.metadata.name, untold },
      'a backup is canceled, but not all of it',
    );
    return { requeueAfterMs: AGAIN_MS };
  }
}
