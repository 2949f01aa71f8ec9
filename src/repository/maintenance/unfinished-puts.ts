import { HOUR_NS, messageOf } from '../../base/index.ts';
import type { UnfinishedPutsOptions } from '../../blob/index.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

/** Our choice: a put takes seconds, but one hanging at a file server may take a weekend. */
const UNFINISHED_AGE_NS = 7n * 24n * HOUR_NS;

/**
 * Removes the remains of killed puts from the storage. Kopia never does. Returns no statistics if
 * there are none. Remains only take space, so a failure is logged and maintenance continues. The
 * storage finds and removes in one step, so the plan holds only a time limit.
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
