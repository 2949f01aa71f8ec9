import { HOUR_NS, messageOf } from '../../base/index.ts';
import type { UnfinishedPutsOptions } from '../../blob/index.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

/** Our choice: a put takes seconds; one that hangs at a file server may go on after a weekend. */
const UNFINISHED_AGE_NS = 7n * 24n * HOUR_NS;

/**
 * Removes what puts that were killed left in the storage; Kopia never does. No statistics where
 * nothing was found. What cannot be removed takes room and does no other harm: a warning is logged,
 * and maintenance goes on. The storage looks and removes in one go, so the plan is no more than the
 * time before which.
 */
export function planUnfinishedPutCleanup(context: TaskContext): TaskPlan {
  const beforeNs = context.startNs - UNFINISHED_AGE_NS;
  return {
    count: () => cleanUp(context, { beforeNs, dryRun: true }),
    apply: () => cleanUp(context, { beforeNs, dryRun: false }),
  };
}

async function cleanUp(
  { repository, signal, logger }: TaskContext,
  options: UnfinishedPutsOptions,
): Promise<TaskStats | undefined> {
  try {
    const { storage } = repository;
    const found = await storage.removeUnfinishedPuts?.({ ...options, signal });
    if (!found?.count) return undefined;
    return {
      kind: 'cleanupUnfinishedPutsStats',
      data: {
        toDeleteFileCount: found.count,
        toDeleteFileSize: found.lengthBytes,
        deletedFileCount: options.dryRun ? 0 : found.count,
      },
    };
  } catch (error) {
    signal.throwIfAborted();
    logger.warn({ error: messageOf(error) }, 'could not remove what interrupted puts left behind');
    return undefined;
  }
}
