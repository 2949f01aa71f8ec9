import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import {
  FINAL_MOVEMENT_PHASES,
  type FinalMovementPhase,
  type PodVolumeBackup,
} from '../kube/index.ts';
import { type DirectionName, DIRECTIONS } from './directions/direction.ts';

const OUTCOMES = { Completed: 'success', Failed: 'failure', Canceled: 'cancel' } as const;
const OUTCOME_WORDS = { Completed: 'successful', Failed: 'failed', Canceled: 'canceled' } as const;
/** Velero: pkg/metrics/metrics.go. */
const LATENCY_SECONDS = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400];
/**
 * PodVolumeBackups with their own latency series (a dozen samples each); the newest are kept.
 * Velero keeps all until its agent restarts. A node has 110 pods by default, so a backup of all of
 * them fits. Our choice.
 */
const LATENCIES_MAX = 200;
const PHASE_SECONDS = [0.5, 1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600];

export interface AgentGauges {
  /** CRs by phase, from this agent's watches. */
  readonly phases: () => Iterable<{ direction: DirectionName; phase: string; count: number }>;
  readonly dataPaths: () => { used: number; limit: number };
  /** Memory limit of the container; undefined without a limit. */
  readonly memoryLimitBytes: number | undefined;
  readonly exposing: () => number;
  /** Seconds since the API server last answered. */
  readonly silentSeconds: () => number;
}

type LatencyLabel = 'node' | 'operation' | 'backupName' | 'pod_volume_backup';

const isBackup = (direction: DirectionName): boolean =>
  direction === 'upload' || direction === 'pod-volume-backup';

/** Metrics of the node-agent. Velero's keep their names and labels, so dashboards keep working. */
export class AgentMetrics {
  readonly registry = new Registry();
  readonly #node: string;
  readonly #outcomes = new Map<string, Counter<'node'>>();
  readonly #ended: Counter<'node' | 'direction' | 'phase'>;
  readonly #podVolumes: PodVolumeMetrics;
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
      for (const phase of FINAL_MOVEMENT_PHASES) {
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
    this.#podVolumes = new PodVolumeMetrics(node, this.registry);
    // Velero does not count how PodVolumeBackups and PodVolumeRestores end.
    this.#ended = new Counter({
      name: 'longshore_ended_total',
      help: 'Operations that ended, by the phase that they ended in',
      labelNames: ['node', 'direction', 'phase'],
      registers,
    });
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
      help: 'Bytes of volumes that were moved, counted while a volume is being moved',
      labelNames: ['direction'],
      registers,
    });
    this.#completed = new Counter({
      name: 'longshore_completed_bytes_total',
      help: 'Bytes of volumes that were moved completely, counted when a volume is done',
      labelNames: ['direction'],
      registers,
    });
    // All series exist from the start. An alert on a rate of zero needs a series, and a rate misses
    // the first value of a new series.
    for (const direction of DIRECTIONS) {
      for (const phase of FINAL_MOVEMENT_PHASES) this.#ended.inc({ node, direction, phase }, 0);
      this.#restarts.inc({ direction }, 0);
      this.#bytes.inc({ direction }, 0);
      this.#completed.inc({ direction }, 0);
    }
    this.#newBytes = new Counter({
      name: 'longshore_new_bytes_total',
      help: 'Bytes of backed-up volumes that no earlier backup had',
      registers,
    });
    this.#queue = new Histogram({
      name: 'longshore_queue_seconds',
      help: 'Time spent in queues: until accepted, and until the node had a free place to move data',
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
      help: 'Time taken until accepted, until prepared, until started, and by the move itself',
      labelNames: ['direction', 'phase'],
      buckets: PHASE_SECONDS,
      registers,
    });
  }

  /** Gauges that are read at each scrape. */
  observe(gauges: AgentGauges): void {
    const registers = [this.registry];
    new Gauge({
      name: 'longshore_data_paths',
      help: 'Data paths running on this node',
      registers,
      collect() {
        this.set(gauges.dataPaths().used);
      },
    });
    new Gauge({
      name: 'longshore_data_paths_limit',
      help: 'Data paths that may run on this node at once',
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
      help: "Memory limit of the agent's container in bytes; 0 if it has none",
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
      help: 'DataUploads, DataDownloads, PodVolumeBackups and PodVolumeRestores by phase',
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

  /** `queuedMs`: time since the CR was prepared. */
  started(direction: DirectionName, ms: number, queuedMs: number): void {
    if (direction === 'pod-volume-backup') this.#podVolumes.enqueued();
    this.#queue.observe({ direction, queue: 'data-path' }, queuedMs / 1000);
    this.#phases.observe({ direction, phase: 'InProgress' }, ms / 1000);
  }

  /** Bytes of a volume moved since the last call. */
  moved(direction: DirectionName, bytes: number): void {
    this.#bytes.inc({ direction }, bytes);
  }

  /** `bytes`: the whole volume. `newBytes`: backups only, bytes that no earlier backup had. */
  completed(direction: DirectionName, bytes: number, ms: number, newBytes: number): void {
    if (isBackup(direction)) this.#newBytes.inc(newBytes);
    this.#phases.observe({ direction, phase: 'Completed' }, ms / 1000);
    this.#completed.inc({ direction }, bytes);
    if (ms > 0) this.#rate.set({ direction }, (bytes * 1000) / ms);
  }

  /** A PodVolumeBackup is `Completed`, `ms` after its data path started. */
  podVolumeBackedUp(backup: PodVolumeBackup, ms: number): void {
    this.#podVolumes.completed(backup, ms);
  }

  ended(direction: DirectionName, phase: FinalMovementPhase): void {
    this.#ended.inc({ node: this.#node, direction, phase });
    this.#outcomes.get(direction + phase)?.inc({ node: this.#node });
  }

  conflict(direction: DirectionName): void {
    this.#conflicts.inc({ direction });
  }

  restarted(direction: DirectionName): void {
    this.#restarts.inc({ direction });
  }
}

/**
 * Velero's metrics for PodVolumeBackups; Velero has none for PodVolumeRestores. The agent that
 * starts a data path counts the CR as enqueued. The agent that ends a completed CR counts it as
 * dequeued. Restarts and takeovers do not count again. Velero:
 * pkg/controller/pod_volume_backup_controller.go, pkg/metrics/metrics.go (v1.18.3).
 */
class PodVolumeMetrics {
  readonly #node: string;
  readonly #enqueued: Counter<'node'>;
  readonly #dequeued: Counter<'node'>;
  readonly #latency: Histogram<LatencyLabel>;
  readonly #latencyGauge: Gauge<LatencyLabel>;
  /** Labels of the existing series, oldest first. */
  readonly #kept = new Map<string, Record<LatencyLabel, string>>();

  constructor(node: string, registry: Registry) {
    this.#node = node;
    const registers = [registry];
    // Exists from the start, so that queries find it.
    const counter = (verb: string): Counter<'node'> => {
      const made = new Counter({
        name: `podVolume_pod_volume_backup_${verb}_count`,
        help: `Total number of pod_volume_backup objects ${verb}d`,
        labelNames: ['node'] as const,
        registers,
      });
      made.inc({ node }, 0);
      return made;
    };
    this.#enqueued = counter('enqueue');
    this.#dequeued = counter('dequeue');
    const labelNames = ['node', 'operation', 'backupName', 'pod_volume_backup'] as const;
    this.#latency = new Histogram({
      name: 'podVolume_pod_volume_operation_latency_seconds',
      help: 'Time taken to complete pod volume operations, in seconds',
      labelNames,
      buckets: LATENCY_SECONDS,
      registers,
    });
    this.#latencyGauge = new Gauge({
      name: 'podVolume_pod_volume_operation_latency_seconds_gauge',
      help: 'Gauge metric indicating time taken, in seconds, to perform pod volume operations',
      labelNames,
      registers,
    });
  }

  enqueued(): void {
    this.#enqueued.inc({ node: this.#node });
  }

  completed({ metadata, spec }: PodVolumeBackup, ms: number): void {
    this.#dequeued.inc({ node: this.#node });
    const { name, namespace = '', ownerReferences } = metadata;
    const { backupStorageLocation, pod, uploaderType = '' } = spec;
    const labels = {
      node: this.#node,
      operation: `${name}-${backupStorageLocation}-${pod.namespace ?? ''}-${uploaderType}-backup`,
      backupName: `${namespace}/${ownerReferences?.[0]?.name ?? ''}`,
      pod_volume_backup: name,
    };
    const seconds = Math.trunc(ms / 1000);
    this.#latency.observe(labels, seconds);
    this.#latencyGauge.set(labels, seconds);
    const key = JSON.stringify(labels);
    this.#kept.delete(key);
    this.#kept.set(key, labels);
    for (const [oldest, old] of this.#kept) {
      if (this.#kept.size <= LATENCIES_MAX) break;
      this.#kept.delete(oldest);
      this.#latency.remove(old);
      this.#latencyGauge.remove(old);
    }
  }
}
