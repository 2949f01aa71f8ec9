import type { Logger, Nanoseconds } from '../../base/index.ts';
import type { Repository } from '../repository.ts';
import type { SafetyParameters } from './safety.ts';

/** Progress of the running task. Read it at any time. */
export class TaskProgress {
  task = '';
  /** The counted items, in the plural. */
  noun = 'steps';
  done = 0;
  /** Undefined if not known in advance. */
  total: number | undefined;

  /** Starts a task, or the next part of a task. */
  begin(task: string, noun = 'steps', total?: number): void {
    Object.assign(this, { task, noun, done: 0, total });
  }
}

/** The input of every task. */
export interface TaskContext {
  readonly repository: Repository;
  readonly safety: SafetyParameters;
  /** The storage's clock at the start of this run. Younger blobs are ignored. */
  readonly startNs: Nanoseconds;
  readonly signal: AbortSignal;
  readonly logger: Logger;
  readonly progress?: TaskProgress | undefined;
}

/** Statistics of a task under Kopia's names, for the schedule and for users. */
export interface TaskStats {
  /** Kopia's name of the statistics, for example `snapshotGCStats`. */
  readonly kind: string;
  readonly data: Readonly<Record<string, number | boolean | string>>;
}

type Outcome = TaskStats | undefined;

/**
 * The planned work of a task. Planning and counting only read. Other clients continue meanwhile, so
 * `apply` reads again before it deletes or replaces anything. A plan holds blob names, and looks up
 * contents while it runs, because they may not fit into memory.
 */
export interface TaskPlan {
  /** Counts the work, for a dry run. Call either `count` or `apply`, and only once. */
  readonly count: () => Outcome | Promise<Outcome>;
  /** Does the work and returns statistics of it. */
  readonly apply: () => Promise<Outcome>;
}

/** Returns undefined if there is nothing to do or report. */
export type PlanTask = (
  context: TaskContext,
) => TaskPlan | undefined | Promise<TaskPlan | undefined>;
