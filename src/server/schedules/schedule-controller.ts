import { Gauge, type Registry } from 'prom-client';
import {
  type Clock,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  redactAndCut,
  rfc3339Seconds,
  SECOND_NS,
  unixSeconds,
} from '../../base/index.ts';
import { localZone, type Zone } from '../../cron/index.ts';
import {
  type Backup,
  isGathering,
  isSynced,
  keyOf,
  type KubeClient,
  refOf,
  type Result,
  validLabel,
} from '../../kube/index.ts';
import { BACKUP_RESOURCE, phaseOf } from '../backups/backup-kind.ts';
import { versionOf } from '../runs/watched-runs.ts';
import type { SharedBackups } from '../backups/shared-backups.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { WatchedKind } from '../watched-kind.ts';
import { type Schedule, SCHEDULE_LABEL, SCHEDULE_RESOURCE } from './schedule.ts';
import { backupOf, isOfSchedule } from './schedule-backup.ts';
import { planSchedule, type SchedulePlan, secondsOf } from './schedule-plan.ts';

/** Schedules with an unfinished backup. */
class PendingBackups {
  /** Keys of Backups by the schedule's label. */
  readonly #bySchedule = new Map<string, Set<string>>();
  readonly #onFree: (label: string) => void;

  /** `onFree`: the last unfinished backup of a schedule ended or was deleted. */
  constructor(onFree: (label: string) => void) {
    this.#onFree = onFree;
  }

  /** `label`: the schedule's label on Backups. */
  has(label: string): boolean {
    return this.#bySchedule.has(label);
  }

  /** Handles a change of a Backup. */
  see(after: Backup | undefined, before: Backup | undefined): void {
    const [label, labelBefore] = [pendingOf(after), pendingOf(before)];
    const key = keyOf((after ?? before)?.metadata ?? { name: '' });
    if (label !== undefined) {
      const keys = this.#bySchedule.get(label) ?? new Set();
      this.#bySchedule.set(label, keys.add(key));
    }
    if (labelBefore === undefined || labelBefore === label) return;
    const keys = this.#bySchedule.get(labelBefore);
    keys?.delete(key);
    if (keys?.size !== 0) return;
    this.#bySchedule.delete(labelBefore);
    this.#onFree(labelBefore);
  }
}

/** The label of the schedule that waits for this backup. */
function pendingOf(backup: Backup | undefined): string | undefined {
  const label = backup?.metadata.labels?.[SCHEDULE_LABEL];
  // Velero (schedule_controller.go, checkIfBackupInNewOrProgress) misses Backups in its queue. A
  // stuck queue then gets another Backup each time.
  return backup && !isSynced(backup) && isGathering(phaseOf(backup)) ? label : undefined;
}

export interface ScheduleControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly registry: Registry;
  readonly backups: SharedBackups;
  /** Default for schedules that do not say whether to skip their first time. */
  readonly skipsImmediately: boolean;
  /**
   * Metrics per schedule, as in Velero, until its deletion. Names are values of the Backups' label.
   */
  readonly series?: {
    /** Called with all schedules when this process begins to lead. */
    readonly exist: (schedules: readonly string[]) => void;
    readonly begin: (schedule: string) => void;
    readonly end: (schedule: string) => void;
  };
  /** Time zone for expressions without one. */
  readonly zone?: Zone;
  readonly clock?: Clock;
}

/** Workers only wait for the API server, and thousands may be due at once. Our choice. */
const WORKERS = 8;
/** Interval of the timer for all schedules, by the API server's clock. Our choice. */
export const LOOK_MS = 1000;
/** If the clock steps back by more, all schedules are reconciled. Our choice. */
const SET_BACK_NS = 60n * SECOND_NS;

/**
 * Creates Backups at the times of Schedules, like Velero's controller of that name. The name of a
 * Backup contains its time, so no time gets two Backups. A second server, or a restarted one, finds
 * the existing Backup.
 */
export class ScheduleController extends LeadingController<ScheduleRun> {
  readonly name = 'schedule';
  readonly #options: ScheduleControllerOptions;

  constructor(options: ScheduleControllerOptions) {
    super(options);
    this.#options = options;
    registerScheduleMetrics(options.registry, () => this.now?.intervals() ?? []);
  }

  override get failure(): string | undefined {
    return super.failure ?? this.#options.backups.failure;
  }

  protected begin(lead: Lead): ScheduleRun {
    return new ScheduleRun(this.#options, lead);
  }
}

/** State of one schedule in this process. */
interface Known {
  readonly uid: string;
  /** The object as this process wrote it. The cache may lag behind. */
  written?: Schedule;
  /** Time of the next reconcile without a change. */
  lookAtNs?: Nanoseconds | undefined;
  aheadSince?: number | undefined;
  interval?: number | undefined;
  /** The expression of the last warning. */
  warnedOf?: string | undefined;
}

/** A period of leadership. */
class ScheduleRun {
  readonly #options: ScheduleControllerOptions;
  readonly #lead: Lead;
  readonly #schedules: WatchedKind<Schedule>;
  readonly #clock: Clock;
  readonly #zone: Zone;
  readonly #known = new Map<string, Known>();
  #lookedAtNs: Nanoseconds = 0n;
  readonly #pending = new PendingBackups((label) => {
    this.#wakeAll(label);
  });

  constructor(options: ScheduleControllerOptions, lead: Lead) {
    this.#options = options;
    this.#lead = lead;
    this.#clock = options.clock ?? options.client.clock;
    this.#zone = options.zone ?? localZone();
    this.#schedules = new WatchedKind({
      ...options,
      clock: this.#clock,
      name: 'schedule',
      workers: WORKERS,
      resource: SCHEDULE_RESOURCE,
      reconcile: (key) => this.#reconcile(key),
    });
  }

  get failure(): string | undefined {
    return this.#schedules.failure;
  }

  async run(): Promise<void> {
    const signal = this.#lead.signal;
    await using watched = await this.#options.backups.open(signal);
    watched.cache.onChange((after, before) => {
      this.#pending.see(after, before);
    });
    const timer = setInterval(() => {
      this.#look();
    }, LOOK_MS);
    try {
      await this.#schedules.run(signal, {
        onSynced: () => {
          const names = this.#schedules.objects.list().map(({ metadata: { name } }) => name);
          this.#options.series?.exist(names.map(validLabel));
        },
      });
    } finally {
      clearInterval(timer);
    }
  }

  /** A single timer: checking ten thousand numbers is cheaper than resetting a thousand timers. */
  #look(): void {
    const nowNs = this.#clock.nowNs();
    // A wrong clock may have set times years ahead.
    const wasSetBack = nowNs < this.#lookedAtNs - SET_BACK_NS;
    this.#lookedAtNs = nowNs;
    for (const [key, known] of this.#known) {
      const isTime = known.lookAtNs !== undefined && known.lookAtNs <= nowNs;
      if (!isTime && !wasSetBack) continue;
      known.lookAtNs = undefined;
      this.#schedules.look(key);
    }
  }

  /** Two long names may share a label. */
  #wakeAll(label: string): void {
    const { namespace } = this.#options;
    if (this.#known.has(keyOf({ namespace, name: label }))) {
      this.#schedules.look(keyOf({ namespace, name: label }));
      return;
    }
    for (const key of this.#known.keys()) {
      if (validLabel(refOf(key).name) === label) this.#schedules.look(key);
    }
  }

  *intervals(): Generator<{ readonly schedule: string; readonly seconds: number }> {
    for (const [key, { interval }] of this.#known) {
      if (interval !== undefined)
        yield { schedule: validLabel(refOf(key).name), seconds: interval };
    }
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const cached = this.#schedules.objects.get(refOf(key));
    if (!cached || cached.metadata.deletionTimestamp !== undefined) {
      if (this.#known.delete(key)) this.#options.series?.end(validLabel(refOf(key).name));
      return undefined;
    }
    const known = this.#knownOf(key, cached);
    const schedule = newer(cached, known.written);
    const nowNs = this.#clock.nowNs();
    const plan = planSchedule(schedule, {
      nowNs,
      zone: this.#zone,
      aheadSince: known.aheadSince,
      skipsImmediately: this.#options.skipsImmediately,
    });
    known.lookAtNs = undefined;
    known.interval = plan?.interval;
    if (!plan) return undefined;
    this.#options.series?.begin(validLabel(schedule.metadata.name));
    this.#tell(schedule, known, plan);
    known.aheadSince = plan.isAhead ? (known.aheadSince ?? unixSeconds(nowNs)) : undefined;
    const written = plan.patch ? await this.#write(schedule, known, plan.patch) : schedule;
    if (plan.dueFor !== undefined && !this.#pending.has(validLabel(schedule.metadata.name))) {
      await this.#submit(written, known, plan.dueFor);
      // The next time depends on the written status.
      return { requeueAfterMs: 0 };
    }
    // A schedule that waits for an earlier backup is woken by the end of that backup.
    if (plan.next !== undefined) known.lookAtNs = BigInt(plan.next) * SECOND_NS + 1n;
    return undefined;
  }

  #knownOf(key: string, { metadata: { uid } }: Schedule): Known {
    const before = this.#known.get(key);
    if (before?.uid === uid) return before;
    const known: Known = { uid };
    this.#known.set(key, known);
    return known;
  }

  #tell({ metadata, spec }: Schedule, known: Known, plan: SchedulePlan): void {
    const { logger } = this.#options;
    const { name } = metadata;
    if (plan.isAhead && known.aheadSince === undefined) {
      const text =
        'the last backup of a schedule lies ahead of now, so a clock was wrong: its times count from now';
      logger.warn({ schedule: name }, text);
    }
    if (plan.hasBothDays && known.warnedOf !== spec?.schedule) {
      const text =
        'the schedule names days of the month and days of the week: backups are made on days that match both, as with Velero since 1.18.3';
      logger.warn({ schedule: name, cron: spec?.schedule }, text);
      known.warnedOf = spec?.schedule;
    }
  }

  /** Patches this version only: a changed schedule is planned again. Throws `KUBE_CONFLICT`. */
  async #write(schedule: Schedule, known: Known, patch: object): Promise<Schedule> {
    const { client, logger } = this.#options;
    const { uid, resourceVersion, name } = schedule.metadata;
    this.#lead.assertLeading();
    const body = { ...patch, metadata: { uid, resourceVersion } };
    const written = await client.patch(SCHEDULE_RESOURCE, schedule.metadata, body, {
      signal: this.#lead.signal,
    });
    known.written = written;
    const { phase, validationErrors } = written.status ?? {};
    if (schedule.status?.phase !== phase || (validationErrors ?? []).length > 0) {
      logger.info({ schedule: name, phase, validationErrors }, 'the schedule was validated');
    }
    return written;
  }

  async #submit(schedule: Schedule, known: Known, dueFor: number): Promise<void> {
    const { client, logger } = this.#options;
    const { name, uid } = schedule.metadata;
    const backup = await this.#make(schedule, dueFor);
    // The API server's creation time, but not before the scheduled time: that would be due again.
    const made = Math.max(dueFor, secondsOf(backup.metadata.creationTimestamp) ?? dueFor);
    logger.info({ schedule: name, backup: backup.metadata.name }, 'a scheduled backup was made');
    this.#lead.assertLeading();
    const status = { lastBackup: rfc3339Seconds(BigInt(made) * SECOND_NS) };
    const body = { metadata: { uid }, status };
    known.written = await client.patch(SCHEDULE_RESOURCE, schedule.metadata, body, {
      signal: this.#lead.signal,
    });
    if (known.aheadSince !== undefined) known.aheadSince = made;
  }

  async #make(schedule: Schedule, dueFor: number): Promise<Backup> {
    try {
      // If a foreign Backup has the name, use the current time in the name, as in Velero.
      for (const forTime of [dueFor, unixSeconds(this.#clock.nowNs())]) {
        const made = await this.#create(schedule, forTime);
        if (made) return made;
      }
      const text = `others have made backups named ${schedule.metadata.name}-… for this time; it is tried again`;
      throw new CodedError('SCHEDULED_NAME_TAKEN', text, { retry: 'backoff' });
    } catch (error) {
      if (!this.#lead.signal.aborted) {
        const text = `no backup can be made: ${redactAndCut(messageOf(error))}`;
        this.#schedules.events.record(schedule, 'NoScheduledBackup', text, 'Warning');
      }
      throw error;
    }
  }

  /**
   * Creates the Backup, or finds its own existing one. Undefined for a foreign Backup of that name.
   */
  async #create(schedule: Schedule, forTime: number): Promise<Backup | undefined> {
    const { client } = this.#options;
    const backup = backupOf(schedule, forTime);
    const ref = { ...schedule.metadata, name: backup.metadata.name ?? '' };
    this.#lead.assertLeading();
    try {
      return await client.create(BACKUP_RESOURCE, backup, { signal: this.#lead.signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
    const found = await client.find(BACKUP_RESOURCE, ref, { signal: this.#lead.signal });
    const isOwn = found && isOfSchedule(found, schedule);
    return isOwn ? found : undefined;
  }
}

function newer(cached: Schedule, written: Schedule | undefined): Schedule {
  if (!written || written.metadata.uid !== cached.metadata.uid) return cached;
  return versionOf(written) > versionOf(cached) ? written : cached;
}

/**
 * Velero's metric of schedules (1.19): seconds between the next two times of an active schedule.
 */
export function registerScheduleMetrics(
  registry: Registry,
  intervals: () => Iterable<{ readonly schedule: string; readonly seconds: number }>,
): void {
  new Gauge({
    name: 'velero_schedule_expected_interval_seconds',
    help: 'Expected interval between consecutive scheduled backups, in seconds',
    labelNames: ['schedule'],
    registers: [registry],
    collect() {
      this.reset();
      for (const { schedule, seconds } of intervals()) this.set({ schedule }, seconds);
    },
  });
}
