import type { TaskContext, TaskPlan, TaskStats } from '../../src/repository/index.ts';
import {
  type DeletePacksOptions,
  planPackDeletion,
} from '../../src/repository/maintenance/delete-packs.ts';
import {
  planRangeCompaction,
  planSingleEpochCompaction,
  planWatermark,
} from '../../src/repository/maintenance/epochs.ts';
import { planLockExtension } from '../../src/repository/maintenance/extend-locks.ts';
import {
  type LegacyCompactionOptions,
  planLegacyCompaction,
} from '../../src/repository/maintenance/legacy-indexes.ts';
import {
  planPackRewrite,
  type RewriteOptions,
} from '../../src/repository/maintenance/rewrite-packs.ts';
import { planGarbageCollection } from '../../src/snapshot/index.ts';

/** Single maintenance tasks, planned and applied at once. */

async function apply(plan: Promise<TaskPlan> | TaskPlan): Promise<TaskStats> {
  const stats = await (await plan).apply();
  if (!stats) throw new Error('the task has no statistics');
  return stats;
}

export const compactSingleEpoch = (context: TaskContext): Promise<TaskStats> =>
  apply(planSingleEpochCompaction(context));

export const compactRange = async (context: TaskContext): Promise<TaskStats | undefined> =>
  (await planRangeCompaction(context))?.apply();

export const putWatermark = async (context: TaskContext, untilNs: bigint): Promise<void> => {
  await (await planWatermark(context, untilNs))?.apply();
};

export const compactLegacyIndexes = (
  context: TaskContext,
  options: LegacyCompactionOptions,
): Promise<TaskStats> => apply(planLegacyCompaction(context, options));

export const extendObjectLocks = (context: TaskContext): Promise<TaskStats> =>
  apply(planLockExtension(context));

export const rewriteShortPacks = (
  context: TaskContext,
  letters: readonly ('p' | 'q')[],
  isDropped: NonNullable<RewriteOptions['isDropped']> = () => false,
  options: Omit<RewriteOptions, 'isDropped'> = {},
): Promise<TaskStats> => apply(planPackRewrite(context, letters, { ...options, isDropped }));

export const deleteUnreferencedPacks = (
  context: TaskContext,
  options: DeletePacksOptions,
): Promise<TaskStats> => apply(planPackDeletion(context, options));

/** A collection that has ended when its plan is returned, for tests before the next task. */
export async function collectGarbage(context: TaskContext): Promise<TaskPlan> {
  const stats = await apply(planGarbageCollection(context));
  return { count: () => stats, apply: () => Promise.resolve(stats) };
}
