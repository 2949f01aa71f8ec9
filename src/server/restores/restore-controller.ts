import { type Clock, isCode, type Logger, messageOf, rfc3339Seconds } from '../../base/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import {
  Controller,
  isNew,
  isOver,
  keyOf,
  type KubeClient,
  refOf,
  type Restore,
  type Result,
} from '../../kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../plugin/index.ts';
import { type RestoreValidationSources, validateRestore } from '../../restore/index.ts';
import { hasSecretPassword } from '../backups/buckets.ts';
import type { Buckets } from '../backups/contract.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { PlaceTurns } from '../place-turns.ts';
import { RunsView } from '../runs/watched-runs.ts';
import { journalAnnotations } from '../runs/journal-tries.ts';
import { DeletedRestores, FILES_FINALIZER, isDeleted } from './deleted-restores.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import { RESTORE_LOCATION, type RestoreLocations } from './locations.ts';
import { CANCELED, failedStatus, isCanceled } from '../runs/run-kind.ts';
import { PhaseEvents } from '../runs/phase-events.ts';
import { isOurs, phaseOf, RESTORE_RUNS, statusOf } from './restore-kind.ts';
import type { RestoreMetrics } from './restore-metrics.ts';
import { RestoreRuns } from './restore-runs.ts';
import type { RestoreRunner } from './run/contract.ts';
import { RunTurns, type Turn } from './run-turns.ts';
import type { SharedRestores } from './shared-restores.ts';

export interface RestoreControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** The name of this process in Events. */
  readonly host: string;
  /** The watch, shared with other controllers of Restores. */
  readonly restores: SharedRestores;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly buckets: Buckets;
  readonly operations: Pick<OperationMap, 'forget'>;
  readonly runner: () => Promise<RestoreRunner>;
  readonly validation: Omit<RestoreValidationSources, 'client'>;
  readonly metrics: RestoreMetrics;
  readonly clock?: Clock;
  /** Time limit for finding the work of a canceled restore; shorter in tests. */
  readonly foundMs?: number;
}

const QUEUE_KEY = 'queue';
/** Interval between looks at the queue, in case a watch missed a change. Our choice. */
const LOOK_MS = 60_000;
/** Delay before the next try for a refused Restore; the queue continues. Our choice. */
const REFUSED_MS = 10_000;
const DELETED_AT_ONCE = 4;
const DELETED_AT_LOCATION = 2;
/** Velero's own message for a run of a killed server (pkg/cmd/server/server.go). */
const LEFT_IN_PROGRESS =
  'found a restore with status "InProgress" during the server starting, mark it as "Failed"';

/**
 * Velero's controller `restore`. Restores run one after another, but a Restore that waits for
 * operations does not block others. If this process dies, another one continues its runs.
 */
export class RestoreController extends LeadingController<RestoresRun> {
  readonly name = 'restore';
  readonly #options: RestoreControllerOptions;

  constructor(options: RestoreControllerOptions) {
    super(options);
    this.#options = options;
  }

  protected begin(lead: Lead): RestoresRun {
    return new RestoresRun(this.#options, lead);
  }
}

/** The state of one term as leader. */
class RestoresRun {
  readonly #options: RestoreControllerOptions;
  readonly #lead: Lead;
  readonly #restores: RunsView<Restore>;
  readonly #deleted: DeletedRestores;
  readonly #queue: Controller;
  readonly #deletions: Controller;
  readonly #places = new PlaceTurns(DELETED_AT_LOCATION);
  readonly #events: PhaseEvents<Restore>;
  readonly #runs: RestoreRuns;
  readonly #turns = new RunTurns({
    onWaiting: () => {
      this.#queue.queue.add(QUEUE_KEY);
    },
  });
  /** When a refused Restore may be retried, in ms of `performance.now()`. Keys are UIDs. */
  readonly #refused = new Map<string, number>();
  #hasStarted = false;

  constructor(options: RestoreControllerOptions, lead: Lead) {
    const { client, logger, host, restores: shared } = options;
    this.#options = options;
    this.#lead = lead;
    const restores = new RunsView({ kind: RESTORE_RUNS, lead, shared });
    this.#restores = restores;
    const { clock } = client;
    this.#events = new PhaseEvents({ client, logger, host, clock, kind: RESTORE_RUNS });
    const { runner, locations, writers, buckets, operations } = options;
    const common = { lead, restores, runner, locations, operations };
    this.#deleted = new DeletedRestores({ ...common, writers, buckets });
    this.#runs = new RestoreRuns({
      ...common,
      foundMs: options.foundMs,
      turns: this.#turns,
      deleted: this.#deleted,
      onRefused: (uid) => {
        this.#refuse(uid);
      },
      onOver: (key) => {
        this.#deletions.queue.add(key);
        this.#queue.queue.add(QUEUE_KEY);
      },
    });
    this.#queue = new Controller({
      name: 'restore',
      workers: 1,
      logger,
      reconcile: () => this.#reconcileQueue(),
    });
    this.#deletions = new Controller({
      name: 'restore-deletion',
      workers: DELETED_AT_ONCE,
      logger,
      reconcile: (key) => this.#remove(key),
    });
  }

  get failure(): string | undefined {
    return this.#options.restores.failure;
  }

  async run(): Promise<void> {
    const watched = await this.#restores.open();
    try {
      if (!this.#lead.signal.aborted) await this.#runWatched();
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
    await Promise.all([this.#queue.run(this.#lead.signal), this.#deletions.run(this.#lead.signal)]);
    await this.#runs.settle();
    await this.#events.flush();
  }

  #changed(after: Restore | undefined, before: Restore | undefined): void {
    if (!this.#hasStarted) return;
    this.#events.changed(after, before);
    if (before && before.metadata.uid !== after?.metadata.uid) {
      const { uid } = before.metadata;
      // A user has removed the finalizer.
      this.#runs.forget(uid);
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
    if (!this.#runs.cancel(restore.metadata.uid)) this.#queue.queue.add(QUEUE_KEY);
  }

  async #remove(key: string): Promise<Result | undefined> {
    // `onOver` queues it again after its run.
    if (this.#runs.hasKey(key)) return undefined;
    const restore = this.#restores.get(refOf(key));
    if (!restore || !isDeleted(restore)) return undefined;
    const place = await this.#options.locations.placeOf(restore, this.#lead.signal);
    return this.#places.run(place, async () => {
      await this.#deleted.remove(restore);
      return undefined;
    });
  }

  async #reconcileQueue(): Promise<Result> {
    const waiting = this.#restores
      .list()
      .filter((restore) => this.#isDue(restore))
      .sort(byTurn);
    for (const restore of waiting) {
      if (!this.#turns.isFree) break;
      await this.#begin(restore, this.#turns.take());
    }
    return { requeueAfterMs: Math.min(LOOK_MS, ...this.#refusedMs()) };
  }

  #isDue(restore: Restore): boolean {
    const { uid } = restore.metadata;
    const phase = phaseOf(restore);
    if ((!isNew(phase) && phase !== 'InProgress') || isDeleted(restore)) return false;
    // Leave Restores of other servers to them.
    if (phase === 'InProgress' && !isOurs(restore)) return false;
    return !this.#runs.isKnown(uid) && (this.#refused.get(uid) ?? 0) <= performance.now();
  }

  #refuse(uid: string): void {
    this.#refused.set(uid, performance.now() + REFUSED_MS);
  }

  #refusedMs(): number[] {
    const nowMs = performance.now();
    return [...this.#refused.values()].map((ms) => Math.max(100, ms - nowMs));
  }

  /** Validates a new Restore and begins its run. If a write fails, others go first. */
  async #begin(given: Restore, turn: Turn): Promise<void> {
    const { logger } = this.#options;
    const { name, uid } = given.metadata;
    let isRunning = false;
    try {
      const isContinued = phaseOf(given) === 'InProgress';
      const restore = isContinued ? given : await this.#start(given);
      this.#refused.delete(uid);
      if (!restore) return;
      this.#runs.begin(restore, turn, { isContinued });
      isRunning = true;
    } catch (error) {
      if (this.#lead.signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      if (isCode(error, 'KUBE_NOT_FOUND')) return;
      this.#refuse(uid);
      if (isCode(error, 'KUBE_CONFLICT')) return;
      const fields = { restore: name, error: messageOf(error) };
      logger.error(fields, 'the phase of a restore cannot be written, and others go on');
    } finally {
      if (!isRunning) this.#turns.leave(turn);
    }
  }

  /** Returns undefined if the Restore does not run. The status then says why. */
  async #start(given: Restore): Promise<Restore | undefined> {
    const { client, namespace, validation, metrics, logger } = this.#options;
    const { name } = given.metadata;
    if (isCanceled(given)) {
      await this.#restores.patch(given, { status: failedStatus(CANCELED, this.#lead.clock) });
      return undefined;
    }
    const { finalizers = [] } = given.metadata;
    const held = finalizers.includes(FILES_FINALIZER)
      ? given
      : await this.#restores.patch(given, {
          metadata: { finalizers: [...finalizers, FILES_FINALIZER] },
        });
    const { restore, errors, location } = await validateRestore(
      held,
      { ...validation, client },
      this.#lead.signal,
    );
    if (errors.length > 0) {
      const status = { phase: 'FailedValidation', validationErrors: errors };
      await this.#restores.patch(held, { spec: restore.spec, status });
      logger.error({ restore: name, errors }, 'a Restore is not valid');
      metrics.invalid(restore);
      return undefined;
    }
    const canSeal = await hasSecretPassword({ client, namespace, signal: this.#lead.signal });
    const started = await this.#restores.patch(held, {
      metadata: {
        annotations: {
          ...restore.metadata.annotations,
          [MADE_BY_ANNOTATION]: 'longshore',
          ...journalAnnotations(restore, canSeal),
          ...(location && { [RESTORE_LOCATION]: location.metadata.name }),
        },
      },
      spec: restore.spec,
      status: {
        phase: 'InProgress',
        startTimestamp: rfc3339Seconds(this.#lead.clock.nowNs()),
      },
    });
    metrics.attempted(started);
    return started;
  }

  /** No server continues a run of Velero. As in Velero, it fails when a server begins to lead. */
  async #endOfAnother(restore: Restore): Promise<void> {
    try {
      await this.#runs.fail(restore, LEFT_IN_PROGRESS);
    } catch (error) {
      if (this.#lead.signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      const fields = { restore: restore.metadata.name, error: messageOf(error) };
      this.#options.logger.error(fields, 'a restore that another server has left stays as it is');
    }
  }
}

/** Running Restores first, then the oldest. */
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
