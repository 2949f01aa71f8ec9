import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { parseGoTime } from '../../base/index.ts';
import type { Backup } from '../../backup/index.ts';
import { phaseOf } from './phases.ts';

const LABELS = ['schedule'] as const;
/** Velero: pkg/metrics/metrics.go. */
const DURATION_BUCKETS = [60, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400];

interface CountedStatus {
  readonly phase?: string;
  readonly errors?: number;
  readonly warnings?: number;
  readonly startTimestamp?: string;
  readonly completionTimestamp?: string;
  readonly progress?: { readonly totalItems?: number };
}

/** Velero's metrics of backups, by its names. */
export class BackupMetrics {
  readonly #counters: Record<string, Counter<'schedule'>>;
  readonly #duration: Histogram<'schedule'>;
  readonly #items: Gauge<'schedule'>;
  readonly #itemErrors: Gauge<'schedule'>;
  readonly #lastStatus: Gauge<'schedule'>;
  readonly #lastSuccess: Gauge<'schedule'>;
  readonly #underWay: Gauge<'phase'>;
  /** Schedules that have series. */
  readonly #begun = new Set<string>();
  /** By schedule, in milliseconds since 1970. */
  readonly #succeeded = new Map<string, number>();

  constructor(registry: Registry) {
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
    this.#lastSuccess = gauge(
      'last_successful_timestamp',
      'Last time a backup ran successfully, Unix timestamp in seconds',
    );
    this.#underWay = new Gauge({
      name: 'longshore_backups',
      help: 'Backups that are not over, by phase, as the leading server sees them',
      labelNames: ['phase'],
      registers,
    });
    this.underWay([]);
    // Backups without a schedule.
    this.begin('');
  }

  /** The phases of all backups that are not over. */
  underWay(phases: readonly string[]): void {
    this.#underWay.reset();
    // Those of the queue are always there, so that nobody takes none for unknown.
    for (const phase of ['New', 'Queued', 'InProgress']) this.#underWay.set({ phase }, 0);
    for (const phase of phases) this.#underWay.inc({ phase: phase === '' ? 'New' : phase });
  }

  /** Series of a schedule are there before its first backup, as with Velero (InitSchedule), so that an alert sees the first failure as a change. */
  begin(schedule: string): void {
    if (this.#begun.has(schedule)) return;
    this.#begun.add(schedule);
    const labels = { schedule };
    for (const counter of Object.values(this.#counters)) counter.inc(labels, 0);
    this.#items.set(labels, 0);
    this.#itemErrors.set(labels, 0);
    this.#lastStatus.set(labels, 1);
  }

  /**
   * A backup that is over, of whatever process: the last success of a schedule is known before its next one (Velero: getLastSuccessBySchedule). Else
   * nobody would be told of backups that never succeed again once a server was started anew.
   */
  seen({ metadata, status }: Backup): void {
    const { phase, completionTimestamp } = (status ?? {}) as CountedStatus;
    if (phase !== 'Completed') return;
    this.#succeededAt(scheduleOf(metadata), msOf(completionTimestamp));
  }

  #succeededAt(schedule: string, endMs: number | undefined): void {
    if (endMs === undefined || endMs <= (this.#succeeded.get(schedule) ?? 0)) return;
    this.#succeeded.set(schedule, endMs);
    this.#lastSuccess.set({ schedule }, endMs / 1000);
  }

  /** The schedule is gone (RemoveSchedule). */
  end(schedule: string): void {
    this.#begun.delete(schedule);
    this.#succeeded.delete(schedule);
    const labels = { schedule };
    for (const counter of Object.values(this.#counters)) counter.remove(labels);
    const others = [this.#items, this.#itemErrors, this.#lastStatus, this.#lastSuccess];
    for (const gauge of others) gauge.remove(labels);
    this.#duration.remove(labels);
  }

  attempted(backup: Backup): void {
    this.#counters.attempt?.inc(this.#labelsOf(backup));
  }

  invalid(backup: Backup): void {
    const labels = this.#labelsOf(backup);
    this.#counters.validation?.inc(labels);
    this.#lastStatus.set(labels, 0);
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
    if (isSuccess) this.#succeededAt(labels.schedule, endMs);
    if (startMs !== undefined && endMs !== undefined) {
      this.#duration.observe(labels, (endMs - startMs) / 1000);
    }
    const { progress } = (before.status ?? {}) as CountedStatus;
    this.#items.set(labels, progress?.totalItems ?? 0);
    this.#itemErrors.set(labels, errors);
  }

  /** Its series begin where they have not: what is told now must not be overwritten by their beginning. */
  #labelsOf({ metadata }: Backup): { schedule: string } {
    const schedule = scheduleOf(metadata);
    this.begin(schedule);
    return { schedule };
  }
}

const scheduleOf = ({ labels }: Backup['metadata']): string =>
  labels?.['velero.io/schedule-name'] ?? '';

function msOf(text: string | undefined): number | undefined {
  try {
    return text === undefined ? undefined : Number(parseGoTime(text) / 1_000_000n);
  } catch {
    return undefined;
  }
}
