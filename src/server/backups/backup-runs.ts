import { isCode, messageOf, rfc3339Seconds, SECOND_NS, Stopwatch } from '../../base/index.ts';
import { type BackupDefaults, type PolicySummary, validateBackup } from '../../backup/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import {
  type Backup,
  type Discovery,
  hasHadRun,
  isPassing,
  type KubeClient,
} from '../../kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../plugin/index.ts';
import { withUntold } from '../operations/cancel-operations.ts';
import { CANCELED, failedStatus, isCanceled } from '../runs/run-kind.ts';
import { patiently } from '../runs/bucket-retries.ts';
import { ActiveRuns } from '../runs/active-runs.ts';
import type { Lead } from '../leading-controller.ts';
import type { RunsView } from '../runs/watched-runs.ts';
import { BACKUP_RUNS, phaseOf } from './backup-kind.ts';
import type { BackupMetrics } from './backup-metrics.ts';
import { journalAnnotations } from '../runs/journal-tries.ts';
import { encryptionProblem, hasSecretPassword } from './buckets.ts';
import type { BackupRunner } from './contract.ts';
import type { LostBackups } from './lost-backups.ts';
import type { PhaseWriter } from './phase-writer.ts';
import type { UnderWayNotes } from './running-backups.ts';

/** Settings of backup runs, the same in every term as leader. */
export interface BackupRunSettings {
  readonly client: KubeClient;
  readonly discovery: () => Promise<Discovery>;
  readonly operations: OperationMap;
  readonly runner: () => Promise<BackupRunner>;
  readonly defaults: BackupDefaults;
  readonly loadPolicies: (backup: Backup) => Promise<PolicySummary | undefined>;
  readonly isServed: (dataMover: string) => Promise<boolean | undefined>;
  /** Added to every Backup that begins. */
  readonly annotations: Readonly<Record<string, string>>;
  readonly metrics: BackupMetrics;
}

export interface BackupRunsOptions {
  readonly lead: Lead;
  readonly settings: BackupRunSettings;
  readonly backups: RunsView<Backup>;
  readonly phases: PhaseWriter;
  readonly notes: UnderWayNotes;
  readonly lost: LostBackups;
  /** Called when a run has ended, unless this process has stopped leading. */
  readonly onOver: () => void;
}

/** For the first check of a location, whose bucket may take 30 s to answer. Our choice. */
const FIRST_LOOK_MS = 40_000;
/** Delay before the next try of a backup that could not be run. Our choice. */
const REST_NS = 10n * SECOND_NS;
/** Velero's own message for a run of a killed server (pkg/cmd/server/server.go). */
const LEFT_IN_PROGRESS =
  'found a backup with status "InProgress" during the server starting, mark it as "Failed"';

/** Runs backups in this process: validation, `InProgress`, and the phase after the run. */
export class BackupRuns {
  readonly #options: BackupRunsOptions;
  readonly #settings: BackupRunSettings;
  readonly #active: ActiveRuns<Backup>;
  /** UIDs of running backups that were deleted. */
  readonly #vanished = new Set<string>();
  /** Time since a backup could not be run. Keys are UIDs. */
  readonly #resting = new Map<string, Stopwatch>();

  constructor(options: BackupRunsOptions) {
    this.#options = options;
    this.#settings = options.settings;
    const { lead, backups: view } = options;
    this.#active = new ActiveRuns({ kind: BACKUP_RUNS, lead, view });
  }

  /**
   * Whether a backup with this `namespace/name` runs here. Backups of one name would share a folder
   * of the bucket.
   */
  has(key: string): boolean {
    return this.#active.hasKey(key);
  }

  hasHadRun(uid: string): boolean {
    return this.#active.hasHadRun(uid);
  }

  /**
   * Remaining delay of a backup that could not be run; 0 if it may begin. Its place is free
   * meanwhile, so one more than allowed may run.
   */
  restMs(uid: string): number {
    const since = this.#resting.get(uid);
    return since ? Math.max(0, Number((REST_NS - since.elapsedNs) / 1_000_000n)) : 0;
  }

  /** Time until the first delayed backup may begin. */
  get nextMs(): number {
    const left = [...this.#resting.keys()].map((uid) => this.restMs(uid)).filter((ms) => ms > 0);
    return Math.min(Infinity, ...left);
  }

  /** Forgets a deleted backup. {@link endVanished} ends its run. */
  forget(uid: string): void {
    this.#active.forget(uid);
    this.#resting.delete(uid);
  }

  /** Returns false if the backup does not run here. */
  cancel({ metadata: { uid } }: Backup): boolean {
    return this.#active.cancel(uid);
  }

  /** Stops a deleted backup and ends its operations. Returns false if it does not run here. */
  endVanished({ metadata: { uid } }: Backup): boolean {
    if (this.#active.has(uid)) this.#vanished.add(uid);
    return this.#active.cancel(uid);
  }

  /** Runs a backup in `ReadyToStart` or `InProgress`. No backup of its name may run. */
  begin(backup: Backup): void {
    const { lost, onOver } = this.#options;
    const { logger, clock, signal } = this.#options.lead;
    const { name, uid } = backup.metadata;
    this.#resting.delete(uid);
    this.#active.begin(backup, {
      make: (abort) => this.#make(backup, abort),
      // The user may have canceled it while no server led.
      isCanceled: isCanceled(backup),
      onFailed: (error) => {
        const fields = { backup: name, error: messageOf(error) };
        logger.error(fields, 'a backup could not be run, and is looked at again');
        // A passing error affects all backups, so it causes no delay.
        if (!isPassing(error)) this.#resting.set(uid, new Stopwatch(clock));
      },
      onOver: () => {
        const hasVanished = this.#vanished.delete(uid);
        if (signal.aborted) return;
        // Applies to every stage of the run, even if only its journal was left to remove.
        if (hasVanished) lost.add(backup);
        this.#noteIfOver(backup);
        onOver();
      },
    });
  }

  settle(): Promise<void> {
    return this.#active.settle();
  }

  /** Removes the note of a finished backup. */
  #noteIfOver({ metadata }: Backup): void {
    const { backups, lost } = this.#options;
    const now = backups.get(metadata);
    if (now?.metadata.uid === metadata.uid && hasHadRun(phaseOf(now))) lost.over(now);
  }

  async #make(given: Backup, signal: AbortSignal): Promise<void> {
    const { phases, notes, lost } = this.#options;
    const { logger, clock, assertLeading, signal: leaving } = this.#options.lead;
    const { metrics, operations } = this.#settings;
    const { name } = given.metadata;
    let backup = given;
    if (phaseOf(backup) === 'ReadyToStart') {
      const started = await this.#start(backup, signal);
      if (!started) return;
      backup = started;
    } else if (backup.metadata.annotations?.[MADE_BY_ANNOTATION] === undefined) {
      await phases.insist(backup, { status: failedStatus(LEFT_IN_PROGRESS, clock) });
      return;
    } else logger.info({ backup: name }, 'going on with a backup that another server began');
    metrics.attempted(backup);
    let isEnded = false;
    let untold: string | undefined;
    try {
      const about = { what: 'ask the API server what it serves', logger, signal };
      const runner = await patiently(() => this.#settings.runner(), about);
      const noting = { what: 'note that a backup is under way', logger, signal };
      // A cancel must not abort this: a note written after its removal would stay.
      await patiently(() => notes.write(backup, leaving), noting);
      signal.throwIfAborted();
      const outcome = await runner.run({
        backup,
        signal,
        leaving,
        onEnded: () => (isEnded = true),
        onUntold: (text) => (untold = text),
        assertLeading,
        onProgress: (progress) => this.#active.tell(backup, progress),
      });
      const status = { ...outcome.status, phase: outcome.phase };
      const metadata = { annotations: { ...outcome.marks } };
      const written = await phases.insist(backup, { metadata, status });
      this.#active.noteHadRun(backup.metadata.uid);
      if (written) metrics.itemsDone(written, outcome.tarballBytes);
      if (written) await this.#forget(written);
      else lost.add(backup);
    } catch (error) {
      if (leaving.aborted || isCode(error, 'LEADERSHIP_LOST')) return;
      const what = signal.aborted ? CANCELED : `backup execution failed: ${messageOf(error)}`;
      const reason = withUntold(what, untold);
      const written = await phases.insist(backup, {
        status: failedStatus(reason, clock),
      });
      this.#active.noteHadRun(backup.metadata.uid);
      operations.forget(backup.metadata.uid);
      if (!written) lost.add(backup);
      else {
        logger.error({ backup: name, error: messageOf(error) }, 'backup failed');
        if (isEnded) await this.#forget(written);
        else lost.over(written, { isLeft: true });
      }
    }
  }

  /** Returns undefined if the backup is not valid. The status then says why. */
  async #start(given: Backup, signal: AbortSignal): Promise<Backup | undefined> {
    const { phases } = this.#options;
    const { logger, clock } = this.#options.lead;
    const { client, defaults, loadPolicies, isServed, metrics } = this.#settings;
    const discovery = await this.#settings.discovery();
    const nowNs = clock.nowNs();
    const checked = await validateBackup(
      given,
      {
        client,
        resources: discovery,
        defaults,
        nowNs,
        loadPolicies,
        isServed,
        firstLookMs: FIRST_LOOK_MS,
        problemOf: (location) => encryptionProblem(location, { client, signal }),
      },
      signal,
    );
    const { backup, errors, warnings } = checked;
    const { name } = given.metadata;
    for (const warning of warnings)
      logger.warn({ backup: name, warning }, 'a Backup has an oddity');
    const isValid = errors.length === 0;
    const { namespace = '' } = given.metadata;
    const canSeal = isValid && (await hasSecretPassword({ client, namespace, signal }));
    const status = isValid
      ? { ...backup.status, phase: 'InProgress', startTimestamp: rfc3339Seconds(nowNs) }
      : { ...backup.status, phase: 'FailedValidation' };
    const annotations = {
      ...backup.metadata.annotations,
      ...this.#settings.annotations,
      ...(isValid && { [MADE_BY_ANNOTATION]: 'longshore' }),
      ...journalAnnotations(backup, canSeal),
    };
    const { labels } = backup.metadata;
    const written = await phases.insist(given, {
      metadata: { labels, annotations },
      spec: backup.spec,
      status,
    });
    if (isValid) return written;
    logger.error({ backup: name, errors }, 'a Backup is not valid');
    if (written) metrics.invalid(written);
    return undefined;
  }

  /** Removes the journal. After a failure, {@link LostBackups} tries again. */
  async #forget(backup: Backup): Promise<void> {
    const { lost } = this.#options;
    const { logger, signal, assertLeading } = this.#options.lead;
    try {
      const runner = await this.#settings.runner();
      await runner.forget(backup, { signal, assertLeading });
      lost.forgotten(backup);
    } catch (error) {
      const fields = { backup: backup.metadata.name, error: messageOf(error) };
      logger.warn(fields, 'the journal of a backup could not be removed');
    }
  }
}
