import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { type Clock, parseGoTime, systemClock } from '../../base/index.ts';
import type { Backup } from '../../backup/index.ts';
import { isRunning, type Operation } from '../../item-operations/index.ts';
import { phaseOf } from './backups-view.ts';

const LABELS = ['schedule'] as const;
/** Velero: pkg/metrics/metrics.go. */
const DURATION_BUCKETS = [60, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400];

interface CountedStatus {
  readonly errors?: number;
  readonly warnings?: number;
  readonly startTimestamp?: string;
  readonly completionTimestamp?: string;
  readonly progress?: { readonly totalItems?: number };
  readonly backupItemOperationsAttempted?: number;
}

/** Velero's metrics of backups, by its names, and some of ours about what they wait for. */
export class BackupMetrics {
  readonly #counters: Record<string, Counter<'schedule'>>;
  readonly #duration: Histogram<'schedule'>;
  readonly #items: Gauge<'schedule'>;
  readonly #itemErrors: Gauge<'schedule'>;
  readonly #lastStatus: Gauge<'schedule'>;
  readonly #lastSuccess: Gauge<'schedule'>;
  readonly #failures: Counter<'plugin'>;
  /** By UID, of backups that wait. */
  readonly #waiting = new Map<string, { readonly oldestMs: number; readonly bytesLeft: number }>();
  readonly #counted = new Map<string, Set<string>>();

  readonly #nowMs: () => number;

  constructor(registry: Registry, clock: Clock = systemClock) {
    this.#nowMs = () => Number(clock.nowNs() / 1_000_000n);
    const nowMs = this.#nowMs;
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
    this.#failures = new Counter({
      name: 'longshore_backup_operation_failures_total',
      help: 'Item operations of backups that have failed, by the action that began them',
      labelNames: ['plugin'],
      registers,
    });
    const waiting = this.#waiting;
    new Gauge({
      name: 'longshore_backup_oldest_operation_seconds',
      help: 'Age of the oldest item operation that a backup waits for',
      registers,
      collect() {
        const oldest = Math.min(...[...waiting.values()].map(({ oldestMs }) => oldestMs));
        this.set(Number.isFinite(oldest) ? Math.max(0, (nowMs() - oldest) / 1000) : 0);
      },
    });
    new Gauge({
      name: 'longshore_backup_operation_bytes_left',
      help: 'Bytes that item operations of backups have still to move, as far as they say',
      registers,
      collect() {
        this.set([...waiting.values()].reduce((sum, { bytesLeft }) => sum + bytesLeft, 0));
      },
    });
  }

  attempted(backup: Backup): void {
    this.#counters.attempt?.inc(labelsOf(backup));
  }

  invalid(backup: Backup): void {
    this.#counters.validation?.inc(labelsOf(backup));
    this.#lastStatus.set(labelsOf(backup), 0);
  }

  /** After a round of questions. */
  polled({ metadata }: Backup, operations: readonly Operation[]): void {
    const running = operations.filter(isRunning);
    const failed = operations.filter(({ status }) => status.phase === 'Failed');
    const counted = this.#counted.get(metadata.uid) ?? new Set<string>();
    this.#counted.set(metadata.uid, counted);
    for (const { spec } of failed) {
      if (counted.has(spec.operationID)) continue;
      counted.add(spec.operationID);
      this.#failures.inc({
        plugin: 'backupItemAction' in spec ? String(spec.backupItemAction) : '',
      });
    }
    if (running.length === 0) {
      this.#waiting.delete(metadata.uid);
      return;
    }
    const begun = running.map(({ status }) => msOf(status.created ?? undefined) ?? this.#nowMs());
    const left = running
      .filter(({ status }) => status.operationUnits === 'Bytes')
      .map(({ status }) =>
        Math.max(0, Number(status.nTotal ?? 0) - Number(status.nCompleted ?? 0)),
      );
    this.#waiting.set(metadata.uid, {
      oldestMs: Math.min(...begun),
      bytesLeft: left.reduce((sum, each) => sum + each, 0),
    });
  }

  /** It has another phase; only final ones count. */
  ended(backup: Backup): void {
    const labels = labelsOf(backup);
    const { errors = 0, warnings = 0, ...status } = (backup.status ?? {}) as CountedStatus;
    const phase = phaseOf(backup);
    if (!['Completed', 'PartiallyFailed', 'Failed'].includes(phase)) return;
    this.#waiting.delete(backup.metadata.uid);
    this.#counted.delete(backup.metadata.uid);
    const isSuccess = phase === 'Completed';
    const which = isSuccess ? 'success' : phase === 'Failed' ? 'failure' : 'partial';
    this.#counters[which]?.inc(labels);
    if (warnings > 0) this.#counters.warning?.inc(labels);
    this.#lastStatus.set(labels, isSuccess ? 1 : 0);
    const startMs = msOf(status.startTimestamp);
    const endMs = msOf(status.completionTimestamp);
    if (isSuccess && endMs !== undefined) this.#lastSuccess.set(labels, endMs / 1000);
    if (startMs !== undefined && endMs !== undefined) {
      this.#duration.observe(labels, (endMs - startMs) / 1000);
    }
    this.#items.set(labels, status.progress?.totalItems ?? 0);
    this.#itemErrors.set(labels, errors);
  }
}

const labelsOf = ({ metadata }: Backup): { schedule: string } => ({
  schedule: metadata.labels?.['velero.io/schedule-name'] ?? '',
});

function msOf(text: string | undefined): number | undefined {
  try {
    return text === undefined ? undefined : Number(parseGoTime(text) / 1_000_000n);
  } catch {
    return undefined;
  }
}
