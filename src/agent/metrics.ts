import { Counter, Gauge, Histogram, Registry } from 'prom-client';

type DirectionName = 'upload' | 'download';
type FinalPhase = 'Completed' | 'Failed' | 'Canceled';

const OUTCOMES = { Completed: 'success', Failed: 'failure', Canceled: 'cancel' } as const;
const OUTCOME_WORDS = { Completed: 'successful', Failed: 'failed', Canceled: 'canceled' } as const;
/** Velero: pkg/metrics/metrics.go. */
const LATENCY_SECONDS = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400];
const PHASE_SECONDS = [0.5, 1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600];

export interface AgentGauges {
  /** CRs by phase, as this agent sees them. */
  readonly phases: () => Iterable<{ direction: DirectionName; phase: string; count: number }>;
  readonly dataPaths: () => { used: number; limit: number };
  /** What the container may use; undefined without a limit. */
  readonly memoryLimitBytes: number | undefined;
  readonly exposing: () => number;
  /** Seconds since the API server last answered. */
  readonly silentSeconds: () => number;
}

/** The node-agent's metrics: Velero's by their names and labels, so that dashboards go on working, and ours. */
export class AgentMetrics {
  readonly registry = new Registry();
  readonly #node: string;
  readonly #outcomes = new Map<string, Counter<'node'>>();
  readonly #conflicts: Counter<'direction'>;
  readonly #restarts: Counter<'direction'>;
  readonly #bytes: Counter<'direction'>;
  readonly #completed: Counter<'direction'>;
  readonly #phases: Histogram<'direction' | 'phase'>;
  readonly #rate: Gauge<'direction'>;
  readonly #newBytes: Counter;
  readonly #queue: Histogram<'direction' | 'queue'>;

  constructor(node: string) {
    this.#node = node;
    const registers = [this.registry];
    for (const direction of ['upload', 'download'] as const) {
      for (const phase of ['Completed', 'Failed', 'Canceled'] as const) {
        const counter = new Counter({
          name: `podVolume_data_${direction}_${OUTCOMES[phase]}_total`,
          help: `Total number of ${OUTCOME_WORDS[phase]} ${direction}ed snapshots`,
          labelNames: ['node'] as const,
          registers,
        });
        counter.inc({ node }, 0);
        this.#outcomes.set(direction + phase, counter);
      }
    }
    this.#addPodVolumeMetrics();
    this.#conflicts = new Counter({
      name: 'longshore_conflicts_total',
      help: 'Writes that failed because another agent wrote first',
      labelNames: ['direction'],
      registers,
    });
    this.#restarts = new Counter({
      name: 'longshore_data_mover_restarts_total',
      help: 'Data movers that died and were started again',
      labelNames: ['direction'],
      registers,
    });
    this.#bytes = new Counter({
      name: 'longshore_moved_bytes_total',
      help: 'Bytes of volumes that were moved; they count while the volume is being moved',
      labelNames: ['direction'],
      registers,
    });
    this.#completed = new Counter({
      name: 'longshore_completed_bytes_total',
      help: 'Bytes of volumes that were moved to the end; they count when the volume is done',
      labelNames: ['direction'],
      registers,
    });
    // Both are there from the start: an alert on a rate of zero needs a series, and a rate misses the bytes that a series begins with.
    for (const direction of ['upload', 'download'] as const) {
      this.#bytes.inc({ direction }, 0);
      this.#completed.inc({ direction }, 0);
    }
    this.#newBytes = new Counter({
      name: 'longshore_new_bytes_total',
      help: 'Bytes of backed up volumes that the backups before did not have',
      registers,
    });
    this.#queue = new Histogram({
      name: 'longshore_queue_seconds',
      help: 'Time in queues: until accepted, and until the node had a free place to move data',
      labelNames: ['direction', 'queue'],
      buckets: PHASE_SECONDS,
      registers,
    });
    this.#rate = new Gauge({
      name: 'longshore_last_rate_bytes_per_second',
      help: 'Rate of the last volume that was moved',
      labelNames: ['direction'],
      registers,
    });
    this.#phases = new Histogram({
      name: 'longshore_phase_seconds',
      help: 'How long it took: until accepted, prepared and started, and the move itself',
      labelNames: ['direction', 'phase'],
      buckets: PHASE_SECONDS,
      registers,
    });
  }

  /** Velero's own of file-system backup; there from the start, so that queries find them. */
  #addPodVolumeMetrics(): void {
    const registers = [this.registry];
    const node = this.#node;
    for (const verb of ['enqueue', 'dequeue']) {
      new Counter({
        name: `podVolume_pod_volume_backup_${verb}_count`,
        help: `Total number of pod_volume_backup objects ${verb}d`,
        labelNames: ['node'] as const,
        registers,
      }).inc({ node }, 0);
    }
    const labelNames = ['node', 'operation', 'backupName', 'pod_volume_backup'] as const;
    new Histogram({
      name: 'podVolume_pod_volume_operation_latency_seconds',
      help: 'Time taken to perform pod volume operations',
      labelNames,
      buckets: LATENCY_SECONDS,
      registers,
    });
    new Gauge({
      name: 'podVolume_pod_volume_operation_latency_seconds_gauge',
      help: 'Time taken to perform pod volume operations',
      labelNames,
      registers,
    });
  }

  /** Gauges that are asked when somebody scrapes. */
  observe(gauges: AgentGauges): void {
    const registers = [this.registry];
    new Gauge({
      name: 'longshore_data_paths',
      help: 'Data paths that run on this node',
      registers,
      collect() {
        this.set(gauges.dataPaths().used);
      },
    });
    new Gauge({
      name: 'longshore_data_paths_limit',
      help: 'Data paths that may run on this node',
      registers,
      collect() {
        this.set(gauges.dataPaths().limit);
      },
    });
    new Gauge({
      name: 'process_resident_memory_bytes',
      help: 'Resident memory size in bytes.',
      registers,
      collect() {
        this.set(process.memoryUsage.rss());
      },
    });
    new Gauge({
      name: 'longshore_memory_limit_bytes',
      help: 'What the container of the agent may use; 0 without a limit',
      registers,
    }).set(gauges.memoryLimitBytes ?? 0);
    new Gauge({
      name: 'longshore_exposing',
      help: 'Volumes that this agent is making available',
      registers,
      collect() {
        this.set(gauges.exposing());
      },
    });
    new Gauge({
      name: 'longshore_api_server_silent_seconds',
      help: 'Time since the API server last answered',
      registers,
      collect() {
        this.set(gauges.silentSeconds());
      },
    });
    new Gauge({
      name: 'longshore_operations',
      help: 'DataUploads and DataDownloads by phase',
      labelNames: ['direction', 'phase'],
      registers,
      collect() {
        this.reset();
        for (const { direction, phase, count } of gauges.phases()) {
          this.set({ direction, phase }, count);
        }
      },
    });
  }

  accepted(direction: DirectionName, ms: number): void {
    this.#queue.observe({ direction, queue: 'accept' }, ms / 1000);
    this.#phases.observe({ direction, phase: 'Accepted' }, ms / 1000);
  }

  prepared(direction: DirectionName, ms: number): void {
    this.#phases.observe({ direction, phase: 'Prepared' }, ms / 1000);
  }

  /** `queuedMs`: since it was prepared. */
  started(direction: DirectionName, ms: number, queuedMs: number): void {
    this.#queue.observe({ direction, queue: 'data-path' }, queuedMs / 1000);
    this.#phases.observe({ direction, phase: 'InProgress' }, ms / 1000);
  }

  /** Of a volume that is being moved: what came since this was called last. */
  moved(direction: DirectionName, bytes: number): void {
    this.#bytes.inc({ direction }, bytes);
  }

  /** `bytes`: of the whole volume. `newBytes`: of a backup, what was not there before. */
  completed(direction: DirectionName, bytes: number, ms: number, newBytes: number): void {
    if (direction === 'upload') this.#newBytes.inc(newBytes);
    this.#phases.observe({ direction, phase: 'Completed' }, ms / 1000);
    this.#completed.inc({ direction }, bytes);
    if (ms > 0) this.#rate.set({ direction }, (bytes * 1000) / ms);
  }

  ended(direction: DirectionName, phase: FinalPhase): void {
    this.#outcomes.get(direction + phase)?.inc({ node: this.#node });
  }

  conflict(direction: DirectionName): void {
    this.#conflicts.inc({ direction });
  }

  restarted(direction: DirectionName): void {
    this.#restarts.inc({ direction });
  }
}
