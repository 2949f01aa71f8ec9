import type { BlobMetadata } from '../../blob/index.ts';
import type { MaintenanceParameters } from './parameters.ts';
import type { TaskContext, TaskStats } from './task.ts';

/** Kopia's values where the parameters hold none (repo/maintenance/cleanup_logs.go). */
const DEFAULTS = { maxTotalSize: 2 ** 30, maxCount: 10_000, maxAge: 30 * 24 * 3600 * 1e9 };

/** Deletes the oldest of Kopia's log blobs beyond size, number and age. */
export async function cleanupLogs(
  { repository, apply, signal }: TaskContext,
  parameters: MaintenanceParameters,
): Promise<TaskStats> {
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
  if (apply) {
    for (const { id } of doomed) {
      signal.throwIfAborted();
      await repository.storage.deleteBlob(id);
    }
  }
  const sum = (blobs: readonly BlobMetadata[]): number =>
    blobs.reduce((total, { lengthBytes }) => total + lengthBytes, 0);
  return {
    kind: 'cleanupLogsStats',
    data: {
      toDeleteBlobCount: doomed.length,
      toDeleteBlobSize: sum(doomed),
      deletedBlobCount: apply ? doomed.length : 0,
      deletedBlobSize: apply ? sum(doomed) : 0,
      retainedBlobCount: logs.length - doomed.length,
      retainedBlobSize: sum(logs) - sum(doomed),
    },
  };
}
