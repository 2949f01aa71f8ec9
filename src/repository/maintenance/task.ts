import type { Logger, Nanoseconds } from '../../base/index.ts';
import type { Repository } from '../repository.ts';
import type { SafetyParameters } from './safety.ts';

/** What every task gets. With `apply` false it only counts what it would do. */
export interface TaskContext {
  readonly repository: Repository;
  readonly safety: SafetyParameters;
  readonly apply: boolean;
  /** The storage's clock when this run began: younger blobs are not looked at. */
  readonly startNs: Nanoseconds;
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

/** Counters of one task under Kopia's names, for the schedule and for people. */
export interface TaskStats {
  /** Kopia's kind of the statistics, e.g. `snapshotGCStats`. */
  readonly kind: string;
  readonly data: Readonly<Record<string, number | boolean | string>>;
}
