import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { parseGoTime } from '../../base/index.ts';
import type { Backup } from '../../backup/index.ts';
import { isOver, phaseOf } from './phases.ts';
import { SnapshotMetrics } from './snapshot-metrics.ts';

const LABELS = ['schedule'] as const;
/** Velero: pkg/metrics/metrics.go. */
const DURATION_BUCKETS = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400];

interface CountedStatus {
  readonly errors?: number;
  readonly warnings?: number;
  readonly startTimestamp?: string;
  readonly completionTimestamp?: string;
  readonly progress?: { readonly totalItems?: number };
}

export interface BackupMetricsOptions {
  /** Backups as the cluster has them, asked at each scrape; undefined where this process does not follow them. */
  readonly backups: () => readonly Backup[] | undefined;
  /** Whether snapshots of CSI drivers are counted. Velero: `--features=EnableCSI`. */
  readonly hasCsi?: boolean;
}

/** Velero's metrics of backups, by its names. */
export class BackupMetrics {
  readonly #counters: Record<string, Counter<'schedule'>>;
  readonly #duration: Histogram<'schedule'>;
  readonly #items: Gauge<'schedule'>;
  readonly #itemErrors: Gauge<'schedule'>;
  readonly #lastStatus: Gauge<'schedule'>;
  readonly #tarball: Gauge<'schedule'>;
  readonly #snapshots: SnapshotMetrics;
  /** Schedules that have series. */
  readonly #begun = new Set<string>();
  /** Schedules that are gone, while some of their backups are still there. */
  readonly #gone = new Set<string>();

  constructor(registry: Registry, { backups, hasCsi = false }: BackupMetricsOptions) {
    const registers = [registry];
    const counter = (name: string, help: string): Counter<'schedule'> =>
      new Counter({ name: `velero_backup_${name}`, help, labelNames: LABELS, registers });
    const gauge = (name: string, help: string): Gauge<'schedule'> =>
      new Gauge({ name: `velero_backup_${name}`, help, labelNames: LABELS, registers });
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
    this.#items = gauge('items_total', 'Total number of items backed up');
    this.#itemErrors = gauge('items_errors', 'Total number of errors encountered during backup');
    this.#lastStatus = gauge(
      'last_status',
      'Last status of the backup. A value of 1 is success, 0 is failure',
    );
    this.#tarball = gauge('tarball_size_bytes', 'Size, in bytes, of a backup');
    new Gauge({
      name: 'velero_backup_total',
      help: 'Current number of existent backups',
      registers,
      collect() {
        const known = backups();
        if (known) this.set(known.length);
        // A process that does not lead knows nothing of them, which is not 0.
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
        // Those of the queue are always there, so that nobody takes none for unknown.
        for (const phase of ['New', 'Queued', 'InProgress']) this.set({ phase }, 0);
        for (const phase of known.map(phaseOf)) {
          if (!isOver(phase)) this.inc({ phase: phase === '' ? 'New' : phase });
        }
      },
    });
    const isGone = (schedule: string): boolean => this.#gone.has(schedule);
    new Gauge({
      name: 'velero_backup_last_successful_timestamp',
      help: 'Last time a backup ran successfully, Unix timestamp in seconds',
      labelNames: LABELS,
      registers,
      collect() {
        this.reset();
        for (const [schedule, seconds] of lastSuccesses(backups() ?? [])) {
          if (!isGone(schedule)) this.set({ schedule }, seconds);
        }
      },
    });
    this.#snapshots = new SnapshotMetrics(registry, { hasCsi });
    // Backups without a schedule.
    this.begin('');
  }

  /** Series of a schedule are there before its first backup, as with Velero (InitSchedule), so that an alert sees the first failure as a change. */
  begin(schedule: string): void {
    this.#gone.delete(schedule);
    if (this.#begun.has(schedule)) return;
    this.#begun.add(schedule);
    const labels = { schedule };
    for (const counter of Object.values(this.#counters)) counter.inc(labels, 0);
    this.#items.set(labels, 0);
    this.#itemErrors.set(labels, 0);
    this.#lastStatus.set(labels, 1);
    this.#snapshots.begin(schedule);
  }

  /** The schedule is gone (RemoveSchedule). */
  end(schedule: string): void {
    this.#begun.delete(schedule);
    this.#gone.add(schedule);
    const labels = { schedule };
    for (const counter of Object.values(this.#counters)) counter.remove(labels);
    for (const gauge of [this.#items, this.#itemErrors, this.#lastStatus, this.#tarball])
      gauge.remove(labels);
    this.#duration.remove(labels);
    this.#snapshots.end(schedule);
  }

  attempted(backup: Backup): void {
    this.#counters.attempt?.inc(this.#labelsOf(backup));
  }

  invalid(backup: Backup): void {
    const labels = this.#labelsOf(backup);
    this.#counters.validation?.inc(labels);
    this.#lastStatus.set(labels, 0);
  }

  /** All of its items are in its files, and its status says so. `tarballBytes`: where this process has made the file. */
  itemsDone(backup: Backup, tarballBytes?: number): void {
    const { schedule } = this.#labelsOf(backup);
    if (tarballBytes !== undefined) this.tarball(backup, tarballBytes);
    this.#snapshots.attempted(schedule, backup);
  }

  tarball(backup: Backup, sizeBytes: number): void {
    this.#tarball.set(this.#labelsOf(backup), sizeBytes);
  }

  /** It has its last phase now; `before`: as it was, with its items. */
  ended(backup: Backup, before: Backup): void {
    const labels = this.#labelsOf(backup);
    const { errors = 0, warnings = 0, ...status } = (backup.status ?? {}) as CountedStatus;
    const phase = phaseOf(backup);
    if (!['Completed', 'PartiallyFailed', 'Failed'].includes(phase)) return;
    const isSuccess = phase === 'Completed';
    const which = isSuccess ? 'success' : phase === 'Failed' ? 'failure' : 'partial';
    this.#counters[which]?.inc(labels);
    if (warnings > 0) this.#counters.warning?.inc(labels);
    this.#lastStatus.set(labels, isSuccess ? 1 : 0);
    const startMs = msOf(status.startTimestamp);
    const endMs = msOf(status.completionTimestamp);
    if (startMs !== undefined && endMs !== undefined) {
      this.#duration.observe(labels, (endMs - startMs) / 1000);
    }
    const { progress } = (before.status ?? {}) as CountedStatus;
    this.#items.set(labels, progress?.totalItems ?? 0);
    this.#itemErrors.set(labels, errors);
    if (phase !== 'Failed') this.#snapshots.ended(labels.schedule, backup);
  }

  /** It is gone, and its own series with it. */
  deleted(backup: Backup): void {
    this.#snapshots.deleted(backup);
  }

  /** Its series begin where they have not: what is told now must not be overwritten by their beginning. */
  #labelsOf(backup: Backup): { schedule: string } {
    const schedule = scheduleOf(backup);
    // One that is gone, and whose last backups still end, is told of as before.
    const isGone = this.#gone.has(schedule);
    this.begin(schedule);
    if (isGone) this.#gone.add(schedule);
    return { schedule };
  }
}

const scheduleOf = ({ metadata }: Backup): string =>
  metadata.labels?.['velero.io/schedule-name'] ?? '';

/** When the newest completed backup of each schedule ended, in seconds since 1970. Velero: getLastSuccessBySchedule. */
function lastSuccesses(backups: readonly Backup[]): Map<string, number> {
  const newest = new Map<string, number>();
  for (const backup of backups) {
    if (phaseOf(backup) !== 'Completed') continue;
    const endMs = msOf((backup.status as CountedStatus).completionTimestamp);
    if (endMs === undefined) continue;
    const schedule = scheduleOf(backup);
    newest.set(schedule, Math.max(newest.get(schedule) ?? 0, endMs / 1000));
  }
  return newest;
}

function msOf(text: string | undefined): number | undefined {
  try {
    return text === undefined ? undefined : Number(parseGoTime(text) / 1_000_000n);
  } catch {
    return undefined;
  }
}
