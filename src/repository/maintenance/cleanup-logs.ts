import type { BlobMetadata } from '../../blob/index.ts';
import type { MaintenanceParameters } from './parameters.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

/** Kopia's defaults for missing parameters (repo/maintenance/cleanup_logs.go). */
const DEFAULTS = { maxTotalSize: 2 ** 30, maxCount: 10_000, maxAge: 30 * 24 * 3600 * 1e9 };

/** Deletes Kopia's oldest log blobs beyond the limits of size, count and age. */
export async function planLogCleanup(
  { repository, signal }: TaskContext,
  parameters: MaintenanceParameters,
): Promise<TaskPlan> {
  const { maxTotalSize, maxCount, maxAge } = parameters.logRetention;
  const limits = {
    bytes: maxTotalSize || DEFAULTS.maxTotalSize,
    count: maxCount || DEFAULTS.maxCount,
    ageNs: BigInt(maxAge || DEFAULTS.maxAge),
  };
  const logs = await Array.fromAsync(repository.storage.listBlobs('_'));
  logs.sort((a, b) => (a.timestampNs > b.timestampNs ? -1 : 1));
  const now = repository.clock.nowNs();
  let bytes = 0;
  const doomed: BlobMetadata[] = [];
  logs.forEach((log, position) => {
    bytes += log.lengthBytes;
    const isKept =
      bytes <= limits.bytes && position < limits.count && now - log.timestampNs <= limits.ageNs;
    if (!isKept) doomed.push(log);
  });
  const stats = (deleted: readonly BlobMetadata[]): TaskStats => ({
    kind: 'cleanupLogsStats',
    data: {
      toDeleteBlobCount: doomed.length,
      toDeleteBlobSize: bytesOf(doomed),
      deletedBlobCount: deleted.length,
      deletedBlobSize: bytesOf(deleted),
      retainedBlobCount: logs.length - doomed.length,
      retainedBlobSize: bytesOf(logs) - bytesOf(doomed),
    },
  });
  return {
    count: () => stats([]),
    apply: async () => {
      for (const { id } of doomed) {
        signal.throwIfAborted();
        await repository.storage.deleteBlob(id);
      }
      return stats(doomed);
    },
  };
}

const bytesOf = (blobs: readonly BlobMetadata[]): number =>
  blobs.reduce((total, { lengthBytes }) => total + lengthBytes, 0);
