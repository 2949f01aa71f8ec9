import {
  CanceledError,
  type Clock,
  isCode,
  type Logger,
  messageOf,
  redactAndCut,
  rfc3339Seconds,
  systemClock,
} from '../../base/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import { Controller, keyOf, type KubeClient, refOf, type Result } from '../../kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../plugin/index.ts';
import {
  type Restore,
  type RestoreProgress,
  type RestoreValidationSources,
  validateRestore,
} from '../../restore/index.ts';
import type { Buckets } from '../backups/contract.ts';
import { isOver } from '../backups/phases.ts';
import { LeadingController, type LeadParts } from '../leading-controller.ts';
import { withUntold } from '../operations/cancel.ts';
import { endingSignal } from '../runs/ending.ts';
import { patiently } from '../runs/patience.ts';
import { RunsView } from '../runs/runs-view.ts';
import { DeletedRestores, FILES_FINALIZER, isDeleted } from './deleted-restores.ts';
import type { FileWriters } from './file-writers.ts';
import type { RestoreLocations } from './locations.ts';
import { CANCELED, failedStatus } from '../runs/failed-status.ts';
import { PhaseEvents } from '../runs/phase-events.ts';
import { RESTORE_PHASES } from './phase-meanings.ts';
import {
  isCanceled,
  isOurs,
  phaseOf,
  RESTORE_RESOURCE,
  statusOf,
  UNPUBLISHED,
} from './restore-kind.ts';
import type { RestoreMetrics } from './restore-metrics.ts';
import type { RestoreRunner } from './run/contract.ts';
import { RunTurns, type Turn } from './run-turns.ts';
import type { SharedRestores } from './shared-restores.ts';

export interface RestoreControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** Named by the Events. */
  readonly host: string;
  /** The watch that it shares with the controllers that follow it. */
  readonly restores: SharedRestores;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly buckets: Buckets;
  readonly operations: Pick<OperationMap, 'forget'>;
  readonly runner: () => Promise<RestoreRunner>;
  readonly validation: Omit<RestoreValidationSources, 'client'>;
  readonly metrics: RestoreMetrics;
  readonly clock?: Clock;
  /** {@link FOUND_MS}; less in tests. */
  readonly foundMs?: number;
}

const QUEUE_KEY = 'queue';
/** Should a watch have missed something. Our choice. */
const LOOK_MS = 60_000;
/** Our choice: the next progress says more. */
const PROGRESS_PATIENCE_MS = 10_000;
/** Of one that the API server does not let be written, which keeps no other one waiting. Our choice. */
const REFUSED_MS = 10_000;
const DELETED_AT_ONCE = 4;
/** How long it may take to find what a restore has begun that is canceled. Our choice: a person waits. */
const FOUND_MS = 30_000;
/** Velero's own sentence for what a server that was killed has left (pkg/cmd/server/server.go). */
const LEFT_IN_PROGRESS =
  'found a restore with status "InProgress" during the server starting, mark it as "Failed"';

/**
 * Velero's controller `restore`: restores run one after the other, and one that only waits for operations holds up no other one. What is under way when
 * this process dies, another one goes on with.
 */
export class RestoreController extends LeadingController<RestoresRun> {
  readonly name = 'restore';
  readonly #options: RestoreControllerOptions;

  constructor(options: RestoreControllerOptions) {
    super();
    this.#options = options;
  }

  protected begin(...parts: LeadParts): RestoresRun {
    return new RestoresRun(this.#options, ...parts);
  }
}

/** A restore that runs here. */
interface Task {
  readonly key: string;
  readonly uid: string;
  readonly abort: AbortController;
  readonly turn: Turn;
  done: Promise<void>;
}

/** One time that this process leads. */
class RestoresRun {
  readonly #options: RestoreControllerOptions;
  readonly #signal: AbortSignal;
  readonly #assertLeading: () => void;
  readonly #clock: Clock;
  readonly #restores: RunsView<Restore>;
  readonly #deleted: DeletedRestores;
  readonly #queue: Controller;
  readonly #deletions: Controller;
  readonly #events: PhaseEvents<Restore>;
  /** By UID. All but one only wait. */
  readonly #tasks = new Map<string, Task>();
  readonly #turns = new RunTurns({
    onWaiting: () => {
      this.#queue.queue.add(QUEUE_KEY);
    },
  });
  /** UIDs of those that have had their run here: what the watch still shows of them is old. */
  readonly #hadRun = new Set<string>();
  /** By UID, until when one is left alone. */
  readonly #refused = new Map<string, number>();
  #hasStarted = false;

  constructor(options: RestoreControllerOptions, signal: AbortSignal, assertLeading: () => void) {
    const { client, logger, namespace, host, restores: shared } = options;
    this.#options = options;
    this.#signal = signal;
    this.#assertLeading = assertLeading;
    this.#clock = options.clock ?? systemClock;
    this.#restores = new RunsView({
      ...{ client, logger, namespace, assertLeading, signal, shared },
      resource: RESTORE_RESOURCE,
    });
    this.#events = new PhaseEvents({
      ...{ client, logger, host, clock: client.clock, kind: 'restore', meanings: RESTORE_PHASES },
    });
    const { runner, locations, writers, buckets, operations } = options;
    this.#deleted = new DeletedRestores({
      ...{ runner, locations, writers, buckets, operations, logger, assertLeading, signal },
      restores: this.#restores,
    });
    this.#queue = new Controller({
      ...{ name: 'restore', workers: 1, logger },
      reconcile: () => this.#reconcileQueue(),
    });
    this.#deletions = new Controller({
      ...{ name: 'restore-deletion', workers: DELETED_AT_ONCE, logger },
      reconcile: (key) => this.#remove(key),
    });
  }

  get failure(): string | undefined {
    return this.#options.restores.failure;
  }

  async run(): Promise<void> {
    const watched = await this.#restores.open();
    try {
      if (!this.#signal.aborted) await this.#runWatched();
    } finally {
      await watched[Symbol.asyncDispose]();
    }
  }

  async #runWatched(): Promise<void> {
    this.#restores.onChange((after, before) => {
      this.#changed(after, before);
    });
    this.#hasStarted = true;
    for (const restore of this.#restores.list()) {
      this.#wake(restore);
      if (phaseOf(restore) === 'InProgress' && !isOurs(restore)) await this.#endOfAnother(restore);
    }
    this.#queue.queue.add(QUEUE_KEY);
    await Promise.all([this.#queue.run(this.#signal), this.#deletions.run(this.#signal)]);
    await Promise.all([...this.#tasks.values()].map(({ done }) => done));
    await this.#events.flush();
  }

  #changed(after: Restore | undefined, before: Restore | undefined): void {
    if (!this.#hasStarted) return;
    this.#events.changed(after, before);
    if (before && before.metadata.uid !== after?.metadata.uid) {
      const { uid } = before.metadata;
      // Somebody has taken its finalizer off, and it is gone.
      this.#tasks.get(uid)?.abort.abort(new CanceledError('user'));
      this.#hadRun.delete(uid);
      this.#refused.delete(uid);
    }
    if (after) this.#wake(after);
    const isSame = before?.metadata.uid === after?.metadata.uid;
    if (after && before && isSame && isOver(phaseOf(after)) && !isOver(phaseOf(before))) {
      this.#options.metrics.ended(after);
    }
    if (!isSame || phaseOf(after as Restore) !== phaseOf(before as Restore)) {
      this.#queue.queue.add(QUEUE_KEY);
    }
  }

  #wake(restore: Restore): void {
    if (isDeleted(restore)) this.#deletions.queue.add(keyOf(restore.metadata));
    if (!isDeleted(restore) && !isCanceled(restore)) return;
    const task = this.#tasks.get(restore.metadata.uid);
    if (task) task.abort.abort(new CanceledError('user'));
    else this.#queue.queue.add(QUEUE_KEY);
  }

  async #remove(key: string): Promise<Result | undefined> {
    // It comes back when its run has ended.
    if ([...this.#tasks.values()].some((task) => task.key === key)) return undefined;
    const restore = this.#restores.get(refOf(key));
    if (restore && isDeleted(restore)) await this.#deleted.remove(restore);
    return undefined;
  }

  async #reconcileQueue(): Promise<Result> {
    const all = this.#restores.list();
    this.#options.metrics.exist(all.length);
    const waiting = all.filter((restore) => this.#isDue(restore)).sort(byTurn);
    for (const restore of waiting) {
      if (!this.#turns.isFree) break;
      await this.#begin(restore, this.#turns.take());
    }
    return { requeueAfterMs: Math.min(LOOK_MS, ...this.#refusedMs()) };
  }

  #isDue(restore: Restore): boolean {
    const { uid } = restore.metadata;
    const phase = phaseOf(restore);
    if (!['', 'New', 'InProgress'].includes(phase) || isDeleted(restore)) return false;
    if (this.#tasks.has(uid)) return false;
    // What another server makes meanwhile is none of ours.
    if (phase === 'InProgress' && !isOurs(restore)) return false;
    return !this.#hadRun.has(uid) && (this.#refused.get(uid) ?? 0) <= performance.now();
  }

  #refusedMs(): number[] {
    const nowMs = performance.now();
    return [...this.#refused.values()].map((ms) => Math.max(100, ms - nowMs));
  }

  /** Validates it where it is new. One that cannot be written is tried again, after the others. */
  async #begin(given: Restore, turn: Turn): Promise<void> {
    const { logger } = this.#options;
    const { name, uid } = given.metadata;
    let isRunning = false;
    try {
      const isContinued = phaseOf(given) === 'InProgress';
      const restore = isContinued ? given : await this.#start(given);
      this.#refused.delete(uid);
      if (!restore) return;
      this.#runBeside(restore, turn, isContinued);
      isRunning = true;
    } catch (error) {
      if (this.#signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      if (isCode(error, 'KUBE_NOT_FOUND')) return;
      this.#refused.set(uid, performance.now() + REFUSED_MS);
      if (isCode(error, 'KUBE_CONFLICT')) return;
      const fields = { restore: name, error: messageOf(error) };
      logger.error(fields, 'the phase of a restore cannot be written, and others go on');
    } finally {
      if (!isRunning) this.#turns.leave(turn);
    }
  }

  /** Undefined where it does not run, and says why. */
  async #start(given: Restore): Promise<Restore | undefined> {
    const { client, validation, metrics, logger } = this.#options;
    const { name } = given.metadata;
    if (isCanceled(given)) {
      await this.#restores.patch(given, { status: failedStatus(CANCELED, this.#clock) });
      return undefined;
    }
    const { finalizers = [] } = given.metadata;
    const held = finalizers.includes(FILES_FINALIZER)
      ? given
      : await this.#restores.patch(given, {
          metadata: { finalizers: [...finalizers, FILES_FINALIZER] },
        });
    const { restore, errors } = await validateRestore(
      held,
      { ...validation, client },
      this.#signal,
    );
    if (errors.length > 0) {
      const status = { phase: 'FailedValidation', validationErrors: errors };
      await this.#restores.patch(held, { spec: restore.spec, status });
      logger.error({ restore: name, errors }, 'a Restore is not valid');
      metrics.invalid(restore);
      return undefined;
    }
    const started = await this.#restores.patch(held, {
      metadata: {
        annotations: { ...held.metadata.annotations, [MADE_BY_ANNOTATION]: 'longshore' },
      },
      spec: restore.spec,
      status: {
        ...{ phase: 'InProgress', startTimestamp: rfc3339Seconds(this.#clock.nowNs()) },
      },
    });
    metrics.attempted(started);
    return started;
  }

  /** Beside the controllers, until it has its next phase. */
  #runBeside(restore: Restore, turn: Turn, isContinued: boolean): void {
    const { logger } = this.#options;
    const { uid, name } = restore.metadata;
    const key = keyOf(restore.metadata);
    const abort = new AbortController();
    // Whatever ends this process's turn, another one goes on.
    const leave = (): void => {
      abort.abort(new CanceledError('shutdown'));
    };
    this.#signal.addEventListener('abort', leave, { once: true });
    if (this.#signal.aborted) leave();
    const task: Task = { key, uid, abort, turn, done: Promise.resolve() };
    this.#tasks.set(uid, task);
    task.done = this.#make(restore, task, isContinued)
      .catch((error: unknown) => {
        if (this.#signal.aborted || isCode(error, 'LEADERSHIP_LOST')) return;
        this.#refused.set(uid, performance.now() + REFUSED_MS);
        const fields = { restore: name, error: messageOf(error) };
        logger.error(fields, 'a restore could not be run, and is looked at again');
      })
      .finally(() => {
        this.#signal.removeEventListener('abort', leave);
        this.#tasks.delete(uid);
        this.#turns.leave(turn);
        if (this.#signal.aborted) return;
        this.#deletions.queue.add(key);
        this.#queue.queue.add(QUEUE_KEY);
      });
    // It may have been deleted or canceled since it was looked at.
    const now = this.#restores.get(restore.metadata);
    if (now?.metadata.uid === uid && (isDeleted(now) || isCanceled(now))) this.#wake(now);
  }

  async #make(restore: Restore, task: Task, isContinued: boolean): Promise<void> {
    const { logger } = this.#options;
    const { signal } = task.abort;
    const { name, uid } = restore.metadata;
    let location: string | undefined;
    let untold: string | undefined;
    let isUnpublished = false;
    // The run ends what earlier ones have begun, once it knows of it.
    let isEnding = !isContinued;
    try {
      if (isCanceled(restore)) throw new CanceledError('user');
      location = await this.#locationOf(restore, signal);
      const place = location;
      const runner = await this.#runner(signal);
      const outcome = await runner.run({
        ...{ restore, location: place, signal, leaving: this.#signal },
        assertLeading: this.#assertLeading,
        onProgress: (progress) => this.#tell(restore, progress),
        whileWaiting: (wait) => this.#turns.waitBeside(task.turn, wait, signal),
        onBegin: () => (isEnding = true),
        onUntold: (text) => (untold = text),
        onUnpublished: () => (isUnpublished = true),
      });
      const status = { ...outcome.status, phase: outcome.phase };
      const written = await this.#restores.insist(restore, { status });
      this.#hadRun.add(uid);
      if (written) await this.#forget(restore, place);
      else await this.#gone(restore);
    } catch (error) {
      if (this.#signal.aborted || isCode(error, 'LEADERSHIP_LOST')) return;
      const isCancel = signal.aborted || isCode(error, 'CANCELED');
      logger.error({ restore: name, error: messageOf(error) }, 'restore failed');
      if (!isEnding && !this.#isGoing(restore)) {
        ({ location, untold } = await this.#endEarlier(restore));
      }
      const what = isCancel ? CANCELED : `restore execution failed: ${messageOf(error)}`;
      const reason = withUntold(what, untold);
      if (!(await this.#end(restore, reason, { isUnpublished }))) await this.#gone(restore);
      else if (location !== undefined) await this.#forget(restore, location);
    }
  }

  #locationOf(restore: Restore, signal: AbortSignal): Promise<string> {
    const { logger, locations } = this.#options;
    const about = { what: 'find the location of a restore', logger, signal };
    return patiently(() => locations.of(restore, signal), about);
  }

  /** Of one that is canceled, or has failed, before its run goes on here: what earlier runs have begun is told to stop. */
  async #endEarlier(
    restore: Restore,
  ): Promise<{ readonly location: string | undefined; readonly untold: string | undefined }> {
    const soon = AbortSignal.any([
      this.#signal,
      AbortSignal.timeout(this.#options.foundMs ?? FOUND_MS),
    ]);
    let location: string | undefined;
    try {
      location = await this.#locationOf(restore, soon);
      const runner = await this.#runner(soon);
      await runner.end(restore, location, endingSignal(this.#signal));
      return { location, untold: undefined };
    } catch (error) {
      this.#signal.throwIfAborted();
      if (isCode(error, 'NOT_ENDED')) return { location, untold: messageOf(error) };
      const why = redactAndCut(messageOf(error));
      const untold = `what it had begun could not be told to stop, and may go on: ${why}`;
      return { location, untold };
    }
  }

  /** Whoever deletes it ends what it has begun. */
  #isGoing(restore: Restore): boolean {
    const now = this.#restores.get(restore.metadata);
    return now?.metadata.uid !== restore.metadata.uid || isDeleted(now);
  }

  #runner(signal: AbortSignal): Promise<RestoreRunner> {
    const { logger, runner } = this.#options;
    const about = { what: 'ask the API server what it serves', logger, signal };
    return patiently(() => runner(), about);
  }

  /** Nobody goes on with what a server of another kind has left: as with Velero it has failed when a server begins to lead. */
  async #endOfAnother(restore: Restore): Promise<void> {
    try {
      await this.#end(restore, LEFT_IN_PROGRESS);
    } catch (error) {
      if (this.#signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      const fields = { restore: restore.metadata.name, error: messageOf(error) };
      this.#options.logger.error(fields, 'a restore that another server has left stays as it is');
    }
  }

  /** False where it is gone. */
  async #end(restore: Restore, reason: string, { isUnpublished = false } = {}): Promise<boolean> {
    const { uid } = restore.metadata;
    const status = failedStatus(reason, this.#clock);
    const metadata = { annotations: { [UNPUBLISHED]: 'true' } };
    const written = await this.#restores.insist(restore, {
      ...(isUnpublished && { metadata }),
      status,
    });
    this.#hadRun.add(uid);
    this.#options.operations.forget(uid);
    return written !== undefined;
  }

  /** It was deleted without its finalizer. */
  async #gone(restore: Restore): Promise<void> {
    const about = { logger: this.#options.logger, signal: this.#signal };
    const what = 'remove the files of a restore that is gone';
    await patiently(() => this.#deleted.removeFiles(restore), { ...about, what });
  }

  /** The next one says more: none is waited for. */
  async #tell(restore: Restore, progress: RestoreProgress): Promise<void> {
    try {
      await this.#restores.insist(restore, { status: { progress } }, PROGRESS_PATIENCE_MS);
    } catch (error) {
      if (!isCode(error, 'STILL_AWAY')) throw error;
      const fields = { restore: restore.metadata.name, error: messageOf(error) };
      this.#options.logger.warn(fields, 'the progress of a restore could not be written');
    }
  }

  /** The journal is of no use any more; one that stays goes with the files of the restore. */
  async #forget(restore: Restore, location: string): Promise<void> {
    try {
      await (await this.#options.runner()).forget(restore, location, this.#signal);
    } catch (error) {
      const fields = { restore: restore.metadata.name, error: messageOf(error) };
      this.#options.logger.warn(fields, 'the journal of a restore could not be removed');
    }
  }
}

/** What was under way first, then in the order in which they were made. */
function byTurn(a: Restore, b: Restore): number {
  const [first, second] = [turnOf(a), turnOf(b)];
  return first < second ? -1 : first > second ? 1 : 0;
}

const turnOf = (restore: Restore): string => {
  const { creationTimestamp, name } = restore.metadata;
  const { startTimestamp = '' } = statusOf(restore) as { readonly startTimestamp?: string };
  return phaseOf(restore) === 'InProgress'
    ? `0 ${startTimestamp} ${name}`
    : `1 ${creationTimestamp} ${name}`;
};
