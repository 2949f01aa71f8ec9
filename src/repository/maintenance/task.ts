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

/** What every task gets. */
export interface TaskContext {
  readonly repository: Repository;
  readonly safety: SafetyParameters;
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

type Outcome = TaskStats | undefined;

/**
 * What a task is about to do. Making a plan and counting it only read. Other clients go on working
 * meanwhile, so what must be read right before something is deleted or replaced is read by `apply`.
 * A plan names blobs; contents, of which there may be too many to hold, are looked up in the index
 * on the way.
 */
export interface TaskPlan {
  /** What it would do, for a dry run. A plan is either counted or applied, and only once. */
  readonly count: () => Outcome | Promise<Outcome>;
  /** Does it, and tells what was done. */
  readonly apply: () => Promise<Outcome>;
}

/** Undefined where there is nothing to do and nothing to report. */
export type PlanTask = (
  context: TaskContext,
) => TaskPlan | undefined | Promise<TaskPlan | undefined>;
