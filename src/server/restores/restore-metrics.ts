import { Counter, Gauge, type Registry } from 'prom-client';
import { lookup } from '../../base/index.ts';
import type { Restore } from '../../kube/index.ts';
import { phaseOf } from './restore-kind.ts';

const LABELS = ['schedule'] as const;

/** Velero's metrics of restores, with the same names (pkg/metrics/metrics.go). */
export class RestoreMetrics {
  readonly #counters: Record<
    'attempt' | 'invalid' | 'success' | 'partial' | 'failed',
    Counter<'schedule'>
  >;

  /** `restores` is called at each scrape. Undefined if this process does not follow Restores. */
  constructor(registry: Registry, restores: () => readonly Restore[] | undefined) {
    const registers = [registry];
    const counter = (name: string, help: string): Counter<'schedule'> => {
      const made = new Counter({
        name: `velero_restore_${name}`,
        help,
        labelNames: LABELS,
        registers,
      });
      // Starts the series without a schedule, so that an alert sees the first failure as a change.
      made.inc({ schedule: '' }, 0);
      return made;
    };
    new Gauge({
      name: 'velero_restore_total',
      help: 'Current number of existent restores',
      registers,
      collect() {
        const known = restores();
        if (known) this.set(known.length);
        // A process that does not lead has no value: 0 would be wrong.
        else this.remove();
      },
    });
    this.#counters = {
      attempt: counter('attempt_total', 'Total number of attempted restores'),
      invalid: counter(
        'validation_failed_total',
        'Total number of failed restores failing validations',
      ),
      success: counter('success_total', 'Total number of successful restores'),
      partial: counter('partial_failure_total', 'Total number of partially failed restores'),
      failed: counter('failed_total', 'Total number of failed restores'),
    };
  }

  attempted(restore: Restore): void {
    this.#counters.attempt.inc(labelsOf(restore));
  }

  invalid(restore: Restore): void {
    this.#counters.invalid.inc(labelsOf(restore));
  }

  /** Called when the restore has its last phase. */
  ended(restore: Restore): void {
    const counters: Record<string, Counter<'schedule'>> = {
      Completed: this.#counters.success,
      PartiallyFailed: this.#counters.partial,
      Failed: this.#counters.failed,
    };
    lookup(counters, phaseOf(restore))?.inc(labelsOf(restore));
  }
}

const labelsOf = ({ spec }: Restore): { schedule: string } => ({
  schedule: spec.scheduleName ?? '',
});
