import { Counter, type Registry } from 'prom-client';
import type { Backup } from '../../kube/index.ts';

const LABELS = ['schedule'] as const;

/** Velero's metrics of deletions, by its names (pkg/metrics/metrics.go, v1.18.3). */
export class DeletionMetrics {
  readonly #counters: Readonly<Record<'attempt' | 'success' | 'failure', Counter<'schedule'>>>;
  readonly #begun = new Set<string>();

  constructor(registry: Registry) {
    const counter = (what: string, help: string): Counter<'schedule'> => {
      const name = `velero_backup_deletion_${what}_total`;
      return new Counter({ name, help, labelNames: LABELS, registers: [registry] });
    };
    this.#counters = {
      attempt: counter('attempt', 'Total number of attempted backup deletions'),
      success: counter('success', 'Total number of successful backup deletions'),
      failure: counter('failure', 'Total number of failed backup deletions'),
    };
    // Backups without a schedule: their series exist from the start.
    this.begin('');
  }

  /** Removes the series of all other schedules. Called with the full list when the watch begins. */
  exist(schedules: readonly string[]): void {
    for (const schedule of [...this.#begun]) {
      if (schedule !== '' && !schedules.includes(schedule)) this.end(schedule);
    }
  }

  /** Creates the series with 0, like all metrics of backups. */
  begin(schedule: string): void {
    this.#begun.add(schedule);
    for (const counter of Object.values(this.#counters)) counter.inc({ schedule }, 0);
  }

  /** For a deleted schedule. */
  end(schedule: string): void {
    this.#begun.delete(schedule);
    for (const counter of Object.values(this.#counters)) counter.remove({ schedule });
  }

  count(what: 'attempt' | 'success' | 'failure', { metadata }: Backup): void {
    const schedule = metadata.labels?.['velero.io/schedule-name'] ?? '';
    this.#begun.add(schedule);
    this.#counters[what].inc({ schedule });
  }
}
