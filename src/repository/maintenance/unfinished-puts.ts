import { HOUR_NS, messageOf } from '../../base/index.ts';
import type { TaskContext, TaskStats } from './task.ts';

/** Our choice: a put takes seconds; one that hangs at a file server may go on after a weekend. */
const UNFINISHED_AGE_NS = 7n * 24n * HOUR_NS;

/**
 * Removes what puts that were killed left in the storage; Kopia never does. Undefined where nothing was found. What cannot be
 * removed takes room and does no other harm: it is warned of, and maintenance goes on.
 */
export async function cleanUpUnfinishedPuts({
  repository,
  startNs,
  apply,
  signal,
  logger,
}: TaskContext): Promise<TaskStats['data'] | undefined> {
  const beforeNs = startNs - UNFINISHED_AGE_NS;
  try {
    const { storage } = repository;
    const found = await storage.removeUnfinishedPuts?.({ beforeNs, dryRun: !apply, signal });
    if (!found?.count) return undefined;
    return {
      toDeleteFileCount: found.count,
      toDeleteFileSize: found.lengthBytes,
      deletedFileCount: apply ? found.count : 0,
    };
  } catch (error) {
    signal.throwIfAborted();
    logger.warn({ error: messageOf(error) }, 'what killed puts left could not be removed');
    return undefined;
  }
}
