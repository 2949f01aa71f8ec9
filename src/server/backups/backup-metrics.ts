import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { parseGoTime } from '../../base/index.ts';
import {
  type Backup,
  type BackupStatus,
  hasEnded,
  isOver,
  isSynced,
  isUsable,
} from '../../kube/index.ts';
import { phaseOf, statusOf } from './backup-kind.ts';
import { SnapshotMetrics } from './snapshot-metrics.ts';

const LABELS = ['schedule'] as const;
const DURATION_BUCKETS = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400];

/** A finished backup with the time of its end. */
interface Ended {
  readonly backup: Backup;
  readonly status: Readonly<BackupStatus>;
  readonly endMs: number;
}

export interface BackupMetricsOptions {
  /** All Backups, read at each scrape; undefined if this process does not follow them. */
  readonly backups: () => readonly Backup[] | undefined;
  readonly hasCsi?: boolean;
}

/** Velero's metrics of backups, with the same names. Velero: pkg/metrics/metrics.go. */
export class BackupMetrics {
  readonly #counters: Record<string, Counter<'schedule'>>;
  readonly #duration: Histogram<'schedule'>;
  readonly #snapshots: SnapshotMetrics;
  readonly #backups: () => readonly Backup[] | undefined;
  /** Schedules that have series. */
  readonly #begun = new Set<string>();
  /** Deleted schedules that still have backups. */
  readonly #gone = new Set<string>();
  /** All existing schedules; undefined until this process knows them. */
  #existing: Set<string> | undefined;
  /** The newest backup whose tarball this process made. Keys are schedules. */
  readonly #tarballs = new Map<string, { readonly uid: string; readonly bytes: number }>();

  constructor(registry: Registry, { backups, hasCsi = false }: BackupMetricsOptions) {
    const registers = [registry];
    const counter = (name: string, help: string): Counter<'schedule'> =>
      new Counter({ name: `velero_backup_${name}`, help, labelNames: LABELS, registers });
    // The values come from the Backups at each scrape. A value in memory would be lost at a
    // restart, and would miss backups that another leader ended.
    const gauge = (
      name: string,
      help: string,
      valueOf: (newest: Ended | undefined, schedule: string) => number | undefined,
      isCounted = isOver,
    ): Gauge<'schedule'> => {
      const values = (): [string, number | undefined][] => this.#values(valueOf, isCounted);
      return new Gauge({
        name: `velero_backup_${name}`,
        help,
        labelNames: LABELS,
        registers,
        collect() {
          this.reset();
          for (const [schedule, value] of values()) {
            if (value !== undefined) this.set({ schedule }, value);
          }
        },
      });
    };
    this.#counters = {
      attempt: counter('attempt_total', 'Total number of attempted backups'),
      success: counter('success_total', 'Total number of successful backups'),
      partial: counter('partial_failure_total', 'Total number of partially failed backups'),
      failure: counter('failure_total', 'Total number of failed backups'),
      validation: counter('validation_failure_total', 'Total number of validation failed backups'),
      warning: counter('warning_total', 'Total number of warned backups'),
    };
    this.#duration = new Histogram({
      name: 'velero_backup_duration_seconds',
      help: 'Time taken to complete backup, in seconds',
      labelNames: LABELS,
      buckets: DURATION_BUCKETS,
      registers,
    });
    this.#backups = backups;
    gauge(
      'items_total',
      'Total number of items backed up',
      (newest) => newest?.status.progress?.totalItems ?? 0,
    );
    gauge(
      'items_errors',
      'Total number of errors encountered during backup',
      (newest) => newest?.status.errors ?? 0,
    );
    // Velero: 1 before the first backup of a schedule.
    gauge(
      'last_status',
      'Last status of the backup. A value of 1 is success, 0 is failure',
      (newest) => (!newest || phaseOf(newest.backup) === 'Completed' ? 1 : 0),
    );
    gauge(
      'tarball_size_bytes',
      'Size, in bytes, of a backup',
      (newest, schedule) => this.#tarballBytes(newest, schedule),
      isUsable,
    );
    new Gauge({
      name: 'velero_backup_total',
      help: 'Current number of existent backups',
      registers,
      collect() {
        const known = backups();
        if (known) this.set(known.length);
        // A process that does not lead has no value: 0 would be wrong.
        else this.remove();
      },
    });
    new Gauge({
      name: 'longshore_backups',
      help: 'Backups that are not over, by phase, as the leading server sees them',
      labelNames: ['phase'],
      registers,
      collect() {
        this.reset();
        const known = backups();
        if (!known) return;
        // Always set the phases of the queue: 0 differs from unknown.
        for (const phase of ['New', 'Queued', 'InProgress']) this.set({ phase }, 0);
        for (const phase of known.map(phaseOf)) {
          if (!isOver(phase)) this.inc({ phase: phase === '' ? 'New' : phase });
        }
      },
    });
    const isGone = (schedule: string): boolean => this.#isGone(schedule);
    new Gauge({
      name: 'velero_backup_last_successful_timestamp',
      help: 'Last time a backup ran successfully, Unix timestamp in seconds',
      labelNames: LABELS,
      registers,
      collect() {
        this.reset();
        const own = (backups() ?? []).filter(isOfThisCluster);
        for (const [schedule, seconds] of lastSuccesses(own)) {
          if (!isGone(schedule)) this.set({ schedule }, seconds);
        }
      },
    });
    this.#snapshots = new SnapshotMetrics(registry, { hasCsi });
    this.begin('');
  }

  /**
   * Called with all schedules when this process begins to follow them. Removes all other series.
   */
  exist(schedules: readonly string[]): void {
    for (const schedule of [...this.#begun]) {
      if (schedule !== '' && !schedules.includes(schedule)) this.end(schedule);
    }
    this.#existing = new Set(schedules);
  }

  /**
   * Starts the series of a schedule before its first backup, so that an alert sees the first
   * failure as a change. Velero: InitSchedule.
   */
  begin(schedule: string): void {
    this.#gone.delete(schedule);
    this.#existing?.add(schedule);
    this.#beginSeries(schedule);
  }

  #beginSeries(schedule: string): void {
    if (this.#begun.has(schedule)) return;
    this.#begun.add(schedule);
    for (const counter of Object.values(this.#counters)) counter.inc({ schedule }, 0);
    this.#snapshots.begin(schedule);
  }

  /** Removes the series of a deleted schedule. Velero: RemoveSchedule. */
  end(schedule: string): void {
    this.#begun.delete(schedule);
    this.#gone.add(schedule);
    this.#existing?.delete(schedule);
    this.#tarballs.delete(schedule);
    const labels = { schedule };
    for (const counter of Object.values(this.#counters)) counter.remove(labels);
    this.#duration.remove(labels);
    this.#snapshots.end(schedule);
  }

  #isGone(schedule: string): boolean {
    if (schedule === '') return false;
    return this.#gone.has(schedule) || this.#existing?.has(schedule) === false;
  }

  /** A value for each existing schedule; none if another process follows the Backups. */
  #values<T>(
    valueOf: (newest: Ended | undefined, schedule: string) => T,
    isCounted: (phase: string) => boolean,
  ): [string, T][] {
    const known = this.#backups();
    if (!known) return [];
    const newest = newestOf(known.filter(isOfThisCluster), isCounted);
    return [...new Set([...this.#begun, ...newest.keys()])]
      .filter((schedule) => !this.#isGone(schedule))
      .map((schedule) => [schedule, valueOf(newest.get(schedule), schedule)]);
  }

  /** Undefined if another process made the newest backup, or if it is deleted. */
  #tarballBytes(newest: Ended | undefined, schedule: string): number | undefined {
    const own = this.#tarballs.get(schedule);
    if (!own || newest?.backup.metadata.uid === own.uid) return own?.bytes;
    const backup = this.#backups()?.find(({ metadata }) => metadata.uid === own.uid);
    return backup && !isOver(phaseOf(backup)) ? own.bytes : undefined;
  }

  attempted(backup: Backup): void {
    this.#counters.attempt?.inc(this.#labelsOf(backup));
  }

  invalid(backup: Backup): void {
    this.#counters.validation?.inc(this.#labelsOf(backup));
  }

  /** Called after the status is written. `tarballBytes` is set if this process made the file. */
  itemsDone(backup: Backup, tarballBytes?: number): void {
    const { schedule } = this.#labelsOf(backup);
    if (tarballBytes !== undefined) this.tarball(backup, tarballBytes);
    this.#snapshots.attempted(schedule, backup);
  }

  tarball(backup: Backup, sizeBytes: number): void {
    const { schedule } = this.#labelsOf(backup);
    this.#tarballs.set(schedule, { uid: backup.metadata.uid, bytes: sizeBytes });
  }

  /** Called when the backup has its last phase. */
  ended(backup: Backup): void {
    const labels = this.#labelsOf(backup);
    const { warnings = 0, ...status } = statusOf(backup);
    const phase = phaseOf(backup);
    if (!hasEnded(phase)) return;
    const which = phase === 'Completed' ? 'success' : phase === 'Failed' ? 'failure' : 'partial';
    this.#counters[which]?.inc(labels);
    if (warnings > 0) this.#counters.warning?.inc(labels);
    const startMs = msOf(status.startTimestamp);
    const endMs = msOf(status.completionTimestamp);
    if (startMs !== undefined && endMs !== undefined) {
      this.#duration.observe(labels, (endMs - startMs) / 1000);
    }
    if (phase !== 'Failed') this.#snapshots.ended(labels.schedule, backup);
  }

  /** Removes the series of a deleted backup. */
  deleted(backup: Backup): void {
    this.#snapshots.deleted(backup);
  }

  /** Begins the series first: beginning them later would overwrite the count. */
  #labelsOf(backup: Backup): { schedule: string } {
    const schedule = scheduleOf(backup);
    this.#beginSeries(schedule);
    return { schedule };
  }
}

const scheduleOf = ({ metadata }: Backup): string =>
  metadata.labels?.['velero.io/schedule-name'] ?? '';

/** Tolerance: times of the API server and of a Backup are exact to a second or two. */
const CLOCK_MS = 5000;

/**
 * A synced Backup of another cluster must not end an alert for a schedule of its name. Velero's
 * sync leaves no mark, so the times decide: a synced Backup is created after its run.
 */
function isOfThisCluster(backup: Backup): boolean {
  if (isSynced(backup)) return false;
  const { metadata, status } = backup;
  const startMs = msOf(status?.startTimestamp);
  const createdMs = msOf(metadata.creationTimestamp);
  return startMs === undefined || createdMs === undefined || startMs + CLOCK_MS >= createdMs;
}

/**
 * End of the newest completed backup of each schedule, in Unix seconds. Velero:
 * getLastSuccessBySchedule.
 */
function lastSuccesses(backups: readonly Backup[]): Map<string, number> {
  const seconds = new Map<string, number>();
  for (const [schedule, { status, endMs }] of newestOf(backups, (p) => p === 'Completed')) {
    if (msOf(status.completionTimestamp) !== undefined) seconds.set(schedule, endMs / 1000);
  }
  return seconds;
}

function newestOf(
  backups: readonly Backup[],
  isCounted: (phase: string) => boolean,
): Map<string, Ended> {
  const newest = new Map<string, Ended>();
  for (const backup of backups) {
    if (!isCounted(phaseOf(backup))) continue;
    const status = statusOf(backup);
    // An invalid backup has no end, so its creation time counts.
    const endMs =
      msOf(status.completionTimestamp) ??
      msOf(status.startTimestamp) ??
      msOf(backup.metadata.creationTimestamp) ??
      0;
    const schedule = scheduleOf(backup);
    const before = newest.get(schedule);
    const isNewer =
      !before ||
      endMs > before.endMs ||
      (endMs === before.endMs && backup.metadata.name > before.backup.metadata.name);
    if (isNewer) newest.set(schedule, { backup, status, endMs });
  }
  return newest;
}

function msOf(text: string | null | undefined): number | undefined {
  try {
    return text === undefined || text === null ? undefined : Number(parseGoTime(text) / 1_000_000n);
  } catch {
    return undefined;
  }
}
