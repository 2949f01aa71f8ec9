import type { Logger, Nanoseconds } from '../../base/index.ts';
import type { Repository } from '../repository.ts';
import type { SafetyParameters } from './safety.ts';

/** How far the task is that runs; read it whenever you like. */
export class TaskProgress {
  task = '';
  /** What is counted, in the plural. */
  noun = 'steps';
  done = 0;
  /** Undefined where it is not known before. */
  total: number | undefined;

  /** Another task, or the next part of one, begins. */
  begin(task: string, noun = 'steps', total?: number): void {
    Object.assign(this, { task, noun, done: 0, total });
  }
}

/** What every task gets. With `apply` false it only counts what it would do. */
export interface TaskContext {
  readonly repository: Repository;
  readonly safety: SafetyParameters;
  readonly apply: boolean;
  /** The storage's clock when this run began: younger blobs are not looked at. */
  readonly startNs: Nanoseconds;
  readonly signal: AbortSignal;
  readonly logger: Logger;
  readonly progress?: TaskProgress | undefined;
}

/** Counters of one task under Kopia's names, for the schedule and for people. */
export interface TaskStats {
  /** Kopia's kind of the statistics, e.g. `snapshotGCStats`. */
  readonly kind: string;
  readonly data: Readonly<Record<string, number | boolean | string>>;
}
