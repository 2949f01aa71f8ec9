import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { PASSWORD_SECRET } from '../../kube/index.ts';
import type { NotedVerification } from '../../repository-access/index.ts';
import type { HistoryEntry } from './maintenance/result.ts';

/** Velero: pkg/metrics/metrics.go. */
const DURATION_SECONDS = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400];

export interface DescribedRepository {
  readonly name: string;
  readonly isReady: boolean;
  readonly overdueSeconds: number;
  /** The result of the last verification. */
  readonly verification: NotedVerification | undefined;
}

export interface RepositoryGauges {
  /** Each repository. Empty while another process leads. */
  readonly repositories: () => Iterable<DescribedRepository>;
  readonly jobs: () => { running: number; waiting: number };
  /** Undefined without a password, or while another process leads. */
  readonly isPasswordWellKnown: () => boolean | undefined;
}

/** Velero's metrics of maintenance under their names, and our own. */
export class RepositoryMetrics {
  readonly #success: Counter<'repository_name'>;
  readonly #failure: Counter<'repository_name'>;
  readonly #duration: Histogram<'repository_name'>;

  constructor(registry: Registry, gauges: RepositoryGauges) {
    const registers = [registry];
    const labelNames = ['repository_name'] as const;
    this.#success = new Counter({
      name: 'velero_repo_maintenance_success_total',
      help: 'Maintenance Jobs that succeeded',
      labelNames,
      registers,
    });
    this.#failure = new Counter({
      name: 'velero_repo_maintenance_failure_total',
      help: 'Maintenance Jobs that failed, or could not be started',
      labelNames,
      registers,
    });
    this.#duration = new Histogram({
      name: 'velero_repo_maintenance_duration_seconds',
      help: 'Time from the creation of a maintenance Job to its end',
      buckets: DURATION_SECONDS,
      labelNames,
      registers,
    });
    new Gauge({
      name: 'longshore_repository_ready',
      help: 'Whether a BackupRepository is Ready (1) or not (0)',
      labelNames,
      registers,
      collect() {
        this.reset();
        for (const { name, isReady } of gauges.repositories()) {
          this.set({ repository_name: name }, isReady ? 1 : 0);
        }
      },
    });
    new Gauge({
      name: 'longshore_repository_maintenance_overdue_seconds',
      help: 'Time since maintenance of a BackupRepository was due; 0 while it is not due',
      labelNames,
      registers,
      collect() {
        this.reset();
        for (const { name, overdueSeconds } of gauges.repositories()) {
          this.set({ repository_name: name }, overdueSeconds);
        }
      },
    });
    new Gauge({
      name: 'longshore_repository_verified_timestamp_seconds',
      help: 'When the last verification of a BackupRepository ended, in seconds since 1970; none for those that never were verified',
      labelNames,
      registers,
      collect() {
        this.reset();
        for (const { name, verification } of gauges.repositories()) {
          if (!verification) continue;
          this.set({ repository_name: name }, Date.parse(verification.time) / 1000);
        }
      },
    });
    new Gauge({
      name: 'longshore_repository_damaged_contents',
      help: 'Contents that the last verification of a BackupRepository found missing or damaged',
      labelNames,
      registers,
      collect() {
        this.reset();
        for (const { name, verification } of gauges.repositories()) {
          if (!verification) continue;
          this.set({ repository_name: name }, verification.damagedContents);
        }
      },
    });
    new Gauge({
      name: 'longshore_repository_password_well_known',
      help: "Whether the password of all repositories is Velero's default, which everybody knows (1), or another one (0)",
      labelNames: ['secret'],
      registers,
      collect() {
        this.reset();
        const isWellKnown = gauges.isPasswordWellKnown();
        if (isWellKnown === undefined) return;
        this.set({ secret: PASSWORD_SECRET }, Number(isWellKnown));
      },
    });
    new Gauge({
      name: 'longshore_repository_maintenance_jobs',
      help: 'Repositories with a maintenance Job under way, and those that are due and wait for a place',
      labelNames: ['state'],
      registers,
      collect() {
        const { running, waiting } = gauges.jobs();
        this.set({ state: 'running' }, running);
        this.set({ state: 'waiting' }, waiting);
      },
    });
  }

  /** For a new repository: a rate needs a series that begins with 0. */
  begin(name: string): void {
    this.#success.inc({ repository_name: name }, 0);
    this.#failure.inc({ repository_name: name }, 0);
  }

  ended(name: string, { result, startTimestamp, completeTimestamp }: HistoryEntry): void {
    const labels = { repository_name: name };
    (result === 'Succeeded' ? this.#success : this.#failure).inc(labels);
    const ms = Date.parse(completeTimestamp ?? '') - Date.parse(startTimestamp ?? '');
    if (ms >= 0) this.#duration.observe(labels, ms / 1000);
  }

  forget(name: string): void {
    this.#success.remove({ repository_name: name });
    this.#failure.remove({ repository_name: name });
    this.#duration.remove({ repository_name: name });
  }
}
