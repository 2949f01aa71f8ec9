import type { Clock, Logger } from '../../base/index.ts';
import {
  type Backup,
  Controller,
  hasPlace,
  isInLine,
  isOver,
  isQueued,
  isUnderWay,
  isWaiting,
  keyOf,
  NAMESPACES,
  refOf,
  type Result,
} from '../../kube/index.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { BACKUP_RUNS, phaseOf, subjectOf } from './backup-kind.ts';
import { type BackupRunSettings, BackupRuns } from './backup-runs.ts';
import { RunsView } from '../runs/watched-runs.ts';
import type { ActionSessions, Buckets } from './contract.ts';
import { DeletionRequests } from './deletion-requests.ts';
import { LostBackups, type RemoveSnapshots } from './lost-backups.ts';
import { cancelOperations } from '../operations/cancel-operations.ts';
import { CANCELED, failedStatus, isCanceled } from '../runs/run-kind.ts';
import { PhaseEvents } from '../runs/phase-events.ts';
import { PhaseWriter } from './phase-writer.ts';
import { planQueue, type QueueStep } from './queue.ts';
import { SharedBackups } from './shared-backups.ts';
import type { StoredSnapshotsOptions } from './stored-snapshots.ts';
import { UnderWayNotes } from './running-backups.ts';

export interface BackupControllerOptions extends BackupRunSettings {
  readonly logger: Logger;
  readonly namespace: string;
  /** The name of this process in Events. */
  readonly host: string;
  /** The watch, shared with other controllers of Backups. */
  readonly backups?: SharedBackups;
  readonly buckets: Buckets;
  readonly sessions: ActionSessions;
  readonly snapshotLocations: StoredSnapshotsOptions['snapshotLocations'];
  readonly removeSnapshots: RemoveSnapshots;
  /** Whether another controller of this server deletes backups and cancels running ones. */
  readonly isDeletedElsewhere?: boolean;
  /** Limit of backups at once. Velero: `--concurrent-backups`. */
  readonly runningMax: number;
  readonly clock?: Clock;
}

const QUEUE_KEY = 'queue';
/** Interval between looks at the queue, in case a watch missed a change. Our choice. */
const LOOK_MS = 60_000;
const CANCELED_AT_ONCE = 4;
/** Delay before a retry of a cancel, and of the queue after a run. Our choice. */
const AGAIN_MS = 10_000;

/**
 * Velero's controllers `backup-queue` and `backup` in one. Handles the queue, the runs, and backups
 * that are canceled or deleted before their end. If this process dies, another one continues its
 * runs.
 */
export class BackupController extends LeadingController<BackupsRun> {
  readonly name = 'backup';
  readonly #options: BackupControllerOptions;

  constructor(options: BackupControllerOptions) {
    super(options);
    this.#options = options;
  }

  protected begin(lead: Lead): BackupsRun {
    return new BackupsRun(this.#options, lead);
  }
}

/** The state of one term as leader. */
class BackupsRun {
  readonly #options: BackupControllerOptions;
  readonly #lead: Lead;
  readonly #backups: RunsView<Backup>;
  readonly #phases: PhaseWriter;
  readonly #runs: BackupRuns;
  readonly #deletions: DeletionRequests;
  readonly #queue: Controller;
  readonly #cancels: Controller;
  readonly #lost: LostBackups;
  readonly #events: PhaseEvents<Backup>;
  #hasStarted = false;

  constructor(options: BackupControllerOptions, lead: Lead) {
    const { client, logger, namespace } = options;
    this.#options = options;
    this.#lead = lead;
    const { host } = options;
    const { clock } = client;
    this.#events = new PhaseEvents({ client, logger, host, clock, kind: BACKUP_RUNS });
    const shared = options.backups ?? new SharedBackups({ client, logger, namespace });
    const backups = new RunsView({ kind: BACKUP_RUNS, lead, shared });
    this.#backups = backups;
    const onDue = (): void => {
      this.#queue.queue.add(QUEUE_KEY);
    };
    this.#phases = new PhaseWriter({ lead, backups, onDue });
    const isElsewhere = options.isDeletedElsewhere === true;
    this.#deletions = new DeletionRequests({ lead, backups, isElsewhere });
    const notes = new UnderWayNotes(lead);
    const { buckets, sessions, operations, discovery, snapshotLocations, removeSnapshots } =
      options;
    this.#lost = new LostBackups({
      lead,
      backups,
      notes,
      buckets,
      sessions,
      operations,
      discovery,
      snapshotLocations,
      removeSnapshots,
      writers: shared.writers,
      onRemoved: onDue,
    });
    this.#runs = new BackupRuns({
      settings: options,
      lead,
      backups,
      phases: this.#phases,
      notes,
      lost: this.#lost,
      onOver: () => {
        this.#queue.queue.add(QUEUE_KEY);
        this.#queue.queue.addAfter(QUEUE_KEY, AGAIN_MS);
      },
    });
    this.#queue = new Controller({
      name: 'backup-queue',
      workers: 1,
      logger,
      reconcile: () => this.#reconcileQueue(),
    });
    this.#cancels = new Controller({
      name: 'backup-cancel',
      workers: CANCELED_AT_ONCE,
      logger,
      reconcile: (key) => this.#cancelWaiting(key),
    });
  }

  get failure(): string | undefined {
    return this.#backups.failure;
  }

  async run(): Promise<void> {
    const watched = await this.#backups.open();
    try {
      if (!this.#lead.signal.aborted) await this.#runWatched();
    } finally {
      await watched[Symbol.asyncDispose]();
    }
  }

  async #runWatched(): Promise<void> {
    this.#backups.onChange((after, before) => {
      this.#changed(after, before);
    });
    // From here on, `#changed` handles every change.
    this.#hasStarted = true;
    await this.#lost.look();
    for (const backup of this.#backups.list()) this.#wake(backup);
    this.#queue.queue.add(QUEUE_KEY);
    await Promise.all([
      this.#deletions.run(),
      this.#lost.run(),
      this.#queue.run(this.#lead.signal),
      this.#cancels.run(this.#lead.signal),
    ]);
    await this.#runs.settle();
    await this.#events.flush();
  }

  #changed(after: Backup | undefined, before: Backup | undefined): void {
    if (!this.#hasStarted) return;
    this.#events.changed(after, before);
    if (!after || (before && before.metadata.uid !== after.metadata.uid)) {
      if (before && !isOver(phaseOf(before))) this.#vanished(before);
      // The deletion controller removes the files of a finished backup.
      else if (before) this.#lost.over(before);
      if (before) this.#runs.forget(before.metadata.uid);
      if (before) this.#phases.forget(before.metadata.uid);
      if (before) this.#options.metrics.deleted(before);
    }
    if (after) this.#wake(after);
    if (after && before && isOver(phaseOf(after)) && !isOver(phaseOf(before))) {
      if (!this.#runs.has(keyOf(after.metadata))) this.#lost.over(after);
      this.#options.metrics.ended(after);
    }
    // A backup that leaves its phase may free a place.
    if (!after || phaseOf(after) !== (before && phaseOf(before))) this.#queue.queue.add(QUEUE_KEY);
  }

  #wake(backup: Backup): void {
    if (!isCanceled(backup)) return;
    if (isWaiting(phaseOf(backup))) this.#cancels.queue.add(keyOf(backup.metadata));
    else if (!this.#runs.cancel(backup)) this.#queue.queue.add(QUEUE_KEY);
  }

  /**
   * Ends a backup that was deleted before its end. Its operations are canceled and its files
   * removed.
   */
  #vanished(backup: Backup): void {
    if (this.#runs.endVanished(backup)) return;
    if (!isUnderWay(phaseOf(backup))) return;
    this.#lost.add(backup);
  }

  async #reconcileQueue(): Promise<Result> {
    this.#phases.begin();
    await this.#moveQueue();
    return { requeueAfterMs: Math.min(LOOK_MS, this.#phases.nextMs, this.#runs.nextMs) };
  }

  async #moveQueue(): Promise<void> {
    const { client, runningMax } = this.#options;
    const backups = this.#backups.list().filter((backup) => !isOver(phaseOf(backup)));
    for (const backup of backups) {
      const phase = phaseOf(backup);
      const key = keyOf(backup.metadata);
      if (isQueued(phase) && isCanceled(backup) && !this.#isHeld(key)) {
        await this.#phases.step(backup, {
          ...failedStatus(CANCELED, this.#lead.clock),
          queuePosition: null,
        });
      } else if (hasPlace(phase) && !this.#isHeld(key)) {
        const { uid } = backup.metadata;
        const mayBegin = !this.#runs.hasHadRun(uid) && this.#runs.restMs(uid) === 0;
        if (mayBegin) this.#runs.begin(backup);
      }
    }
    const needsPlace = (backup: Backup): boolean =>
      !this.#phases.isStalled(backup) && this.#runs.restMs(backup.metadata.uid) === 0;
    const open = this.#backups
      .list()
      .filter((backup) => !isOver(phaseOf(backup)) && needsPlace(backup));
    const isQueueing = open.some((backup) => isInLine(phaseOf(backup)));
    if (!isQueueing) return;
    const namespaces = await client.collect(
      NAMESPACES,
      { signal: this.#lead.signal },
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
        if (!isHeld(backup)) this.#runs.begin(written);
      } else if (phaseOf(backup) !== 'Queued') this.#queue.queue.add(QUEUE_KEY);
    }
  }

  /** Whether a deleted Backup of this name is still being ended. Both would use the same folder. */
  #isHeld(key: string): boolean {
    return this.#runs.has(key) || this.#lost.has(key);
  }

  /** Cancels the operations of a waiting backup. Their controller sees them end. */
  async #cancelWaiting(key: string): Promise<Result | undefined> {
    const backup = this.#backups.get(refOf(key));
    if (!backup || !isWaiting(phaseOf(backup)) || !isCanceled(backup)) return undefined;
    const { sessions, operations, logger } = this.#options;
    await using session = await sessions.open(backup, logger);
    const options = { asker: session.asker, signal: this.#lead.signal };
    const untold = await cancelOperations(operations, subjectOf(backup), options);
    if (untold === undefined) return undefined;
    logger.warn(
      { backup: backup.metadata.name, untold },
      'a backup is canceled, but not all of it',
    );
    return { requeueAfterMs: AGAIN_MS };
  }
}
